//! Connects to what a target names.

use std::sync::Arc;

use anyhow::{Context, Result};
use queue::{Queue, SqliteOptions, SqliteQueue};
use storage::{StoreOptions, TargetStore};

use super::{QueueAddress, Role, Target};
use crate::settings::Settings;

/// What jobs are published to and told through.
#[derive(Clone, Debug)]
pub struct Queues {
    /// Descriptors.
    pub tasks: Arc<dyn Queue>,
    /// Outcomes.
    pub results: Arc<dyn Queue>,
    /// Messages that nobody can read.
    pub dead_letters: Arc<dyn Queue>,
}

impl Target {
    /// Opens its store. What is wrong with address, bucket or credentials is told here.
    pub async fn open_store(&self) -> Result<TargetStore> {
        let options = StoreOptions { endpoint: self.endpoint.clone(), region: self.region.clone() };
        let store = TargetStore::open(self.store()?, options).await;
        store.with_context(|| format!("the store of target {} cannot be used", self.name))
    }

    /// Opens its three queues.
    pub async fn open_queues(&self) -> Result<Queues> {
        let (tasks, results, dead_letters) = tokio::try_join!(
            self.open_queue(Role::Tasks),
            self.open_queue(Role::Results),
            self.open_queue(Role::DeadLetters)
        )?;
        Ok(Queues { tasks, results, dead_letters })
    }

    /// Opens one of its queues.
    pub async fn open_queue(&self, role: Role) -> Result<Arc<dyn Queue>> {
        let address = self.queue()?;
        let opened = match address {
            QueueAddress::Sqlite { folder } => {
                std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
                SqliteQueue::open(address.name(role), SqliteOptions::default()).map(|queue| Arc::new(queue) as _)
            }
            QueueAddress::Sqs { .. } | QueueAddress::Rabbit { .. } => anyhow::bail!("{address}: no such queues yet"),
        };
        opened.with_context(|| {
            format!(
                "target {}: its queues cannot be used (`gristmill doctor --create` makes those that are missing)",
                self.name
            )
        })
    }

    /// Whether its queues are on this machine, so that its nodes most likely are too.
    pub fn is_on_this_machine(&self) -> Result<bool> {
        let is_loopback = |url: &url::Url| match url.host() {
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        Ok(match self.queue()? {
            QueueAddress::Sqlite { .. } => true,
            QueueAddress::Rabbit { url, .. } => is_loopback(url),
            QueueAddress::Sqs { .. } => {
                let endpoint = self.endpoint.clone().or_else(Settings::sqs_endpoint);
                endpoint.and_then(|endpoint| url::Url::parse(&endpoint).ok()).is_some_and(|url| is_loopback(&url))
            }
        })
    }
}
