//! Registers outputs of completed jobs under the names that their documents give them.

use anyhow::Context;
use job_file::{Asset, RUN_ID};
use protocol::{JobResult, JobState};

use crate::{Engine, Events, Notice, Result};

impl Engine {
    /// Registers assets once their job has completed.
    pub(crate) fn register(
        &self,
        assets: &[Asset],
        result: &JobResult,
        events: &Events,
    ) -> Result<()> {
        if assets.is_empty() || result.state != JobState::Completed {
            return Ok(());
        }
        let register = self.home().register();
        for asset in assets {
            let asset = Asset { path: asset.path.replace(RUN_ID, &result.job_id), ..asset.clone() };
            let Asset { name, path, .. } = &asset;
            let version = register
                .add(&asset, &result.job_id)
                .with_context(|| format!("register {path} as {name}"))?;
            events.notice(Notice::Decision(format!("azureml:{name}:{version} is {path}")));
        }
        Ok(())
    }
}
