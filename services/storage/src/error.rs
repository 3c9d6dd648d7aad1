//! What can go wrong with an object, by what the caller does next.

/// Every message names the object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such object.
    #[error("{object} does not exist")]
    NotFound {
        /// Which object.
        object: String,
    },
    /// It could not be read or written: try again later, or mend the cause (disk full, permission, network).
    #[error("{object}: {message}")]
    Unavailable {
        /// Which object.
        object: String,
        /// What the store said.
        message: String,
    },
    /// It was read but makes no sense.
    #[error("{object} is damaged: {message}")]
    Damaged {
        /// Which object.
        object: String,
        /// What the decoder said.
        message: String,
    },
}

impl Error {
    pub(crate) fn from_store(object: &str, error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound { object: object.to_owned() },
            error => Self::Unavailable { object: object.to_owned(), message: innermost(&error) },
        }
    }
}

/// The deepest cause says what happened ("No space left on device"); the layers above only say where.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
