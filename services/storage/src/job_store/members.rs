//! The nodes that work on a job, and those that must not.

use protocol::Members;

use super::{JobStore, json, optional};
use crate::Result;

const MEMBERS: &str = "control/members";

impl JobStore {
    /// Writes the nodes that work on the job, and those that must not.
    pub async fn put_members(&self, members: &Members) -> Result<()> {
        self.objects.put(MEMBERS, json(members)).await
    }

    /// Returns the nodes of the job. The list is empty until a second node has begun.
    pub async fn members(&self) -> Result<Members> {
        Ok(optional(self.objects.json(MEMBERS).await)?.unwrap_or_default())
    }
}
