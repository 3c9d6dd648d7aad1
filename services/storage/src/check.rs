//! Whether a store can do what jobs depend on.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use futures::future::join_all;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};

use crate::{Error, Result, TargetStore};

/// Writers that race for one object.
const WRITERS: u64 = 16;

/// Why a store cannot hold jobs: two reducers would overwrite each other's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotConditional {
    /// It has no such call.
    Unsupported(String),
    /// It says yes to everybody: it ignores `If-None-Match`.
    Ignored {
        /// Writers that were told that they had created the object, beside the one that had.
        deceived: usize,
    },
}

impl fmt::Display for NotConditional {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(said) => {
                write!(formatter, "the store cannot create an object only if it is absent: {said}")
            }
            Self::Ignored { deceived } => write!(
                formatter,
                "the store does not honour conditional creates (If-None-Match: *): of {WRITERS} writers that raced for \
                 one object, {deceived} were told that they had created it although another had"
            ),
        }
    }
}

/// Lets 16 writers race to create one object. Exactly one may win, and its bytes must be those that are there. Leaves
/// nothing behind.
pub async fn conditional_create_works(target: &TargetStore) -> Result<std::result::Result<(), NotConditional>> {
    let (store, prefix) = target.objects();
    let path = prefix.join("doctor").join(format!("race-{:016x}", RandomState::new().hash_one(0)));
    let name = format!("{}/doctor", target.url());
    let checked = race(&*store, &path, &name).await;
    match store.delete(&path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => checked,
        Err(error) => checked.and(Err(Error::from_store(&name, error))),
    }
}

async fn race(
    store: &dyn ObjectStore,
    path: &object_store::path::Path,
    name: &str,
) -> Result<std::result::Result<(), NotConditional>> {
    let bytes = |writer: u64| Bytes::from(format!("writer {writer}"));
    let create =
        |writer| async move { (writer, store.put_opts(path, bytes(writer).into(), PutMode::Create.into()).await) };
    let mut told = Vec::new();
    for (writer, created) in join_all((0..WRITERS).map(create)).await {
        match created {
            Ok(_) => told.push(writer),
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(error @ (object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. })) => {
                return Ok(Err(NotConditional::Unsupported(error.to_string())));
            }
            Err(error) => return Err(Error::from_store(name, error)),
        }
    }
    let found = async { store.get(path).await?.bytes().await };
    let found = found.await.map_err(|error| Error::from_store(name, error))?;
    let deceived = told.iter().filter(|&&writer| bytes(writer) != found).count();
    Ok(if deceived == 0 { Ok(()) } else { Err(NotConditional::Ignored { deceived }) })
}
