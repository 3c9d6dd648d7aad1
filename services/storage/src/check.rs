//! Checks whether a store creates objects only if they are absent, on which jobs depend.

use std::fmt;

use bytes::Bytes;
use futures::future::join_all;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};

use crate::{Error, Result, TargetStore, random_name};

/// The number of writers that race for one object.
const WRITERS: u64 = 16;

/// Why a store cannot hold jobs: two reducers could overwrite each other's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotConditional {
    /// The store does not support conditional creates. Has its answer.
    Unsupported(String),
    /// The store accepts every create: it ignores `If-None-Match`.
    Ignored {
        /// The number of writers that the store wrongly told that they had created the object.
        deceived: usize,
    },
}

impl fmt::Display for NotConditional {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(answer) => {
                write!(
                    formatter,
                    "the store cannot create an object only if it is absent: {answer}"
                )
            }
            Self::Ignored { deceived } => write!(
                formatter,
                "the store does not honour conditional creates (If-None-Match: *): {deceived} of \
                 {WRITERS} concurrent writers were wrongly told that they had created the object"
            ),
        }
    }
}

/// Lets 16 writers race to create one object. Exactly one may win, and the object must contain its bytes. Deletes the
/// object afterwards.
pub async fn conditional_create_works(
    target: &TargetStore,
) -> Result<std::result::Result<(), NotConditional>> {
    let store = &*target.objects.store;
    let path = target.objects.path("doctor").join(format!("race-{}", random_name()));
    let name = target.objects.name("doctor");
    let checked = race(store, &path, &name).await;
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
    let create = |writer| async move {
        (writer, store.put_opts(path, bytes(writer).into(), PutMode::Create.into()).await)
    };
    let mut created_by = Vec::new();
    for (writer, created) in join_all((0..WRITERS).map(create)).await {
        match created {
            Ok(_) => created_by.push(writer),
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(
                error @ (object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. }),
            ) => {
                return Ok(Err(NotConditional::Unsupported(error.to_string())));
            }
            Err(error) => return Err(Error::from_store(name, error)),
        }
    }
    let found = async { store.get(path).await?.bytes().await };
    let found = found.await.map_err(|error| Error::from_store(name, error))?;
    let deceived = created_by.iter().filter(|&&writer| bytes(writer) != found).count();
    Ok(if deceived == 0 { Ok(()) } else { Err(NotConditional::Ignored { deceived }) })
}
