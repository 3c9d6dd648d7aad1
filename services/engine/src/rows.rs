//! The rows of one mini-batch of tables as a file of their own, for tests of a script.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use protocol::Work;
use tables::{DecodeRequest, LocalBlock, write_parquet};

use crate::round::check_input;
use crate::{Error, Jobs, Purpose};

impl Jobs {
    /// Writes the rows of a mini-batch to a new Parquet file, with the types that the script gets. Returns their
    /// number. The tables must be files of this machine, as they were planned.
    pub async fn write_rows(&self, wanted: &str, mini_batch: u64, to: &Path) -> crate::Result<u64> {
        let job = self.find(wanted, Purpose::Look).await?;
        let descriptor = job.planned(mini_batch).await?;
        let job_id = job.spec.job_id;
        let Work::Rows { input, blocks, .. } = &descriptor.work else {
            let detail = descriptor.detail();
            return Err(Error::Refused(format!(
                "mini-batch {mini_batch} of job {job_id} has no rows of a table: it is {detail}"
            )));
        };
        if let Some(url) = blocks.iter().map(|block| &block.path).find(|path| path.is_url()) {
            let url = url.display();
            return Err(Error::Refused(format!(
                "{url} is not a file of this machine; download it, and run a job on the copy"
            )));
        }
        let position = *input as usize;
        let schema =
            job.store.schemas().await.context("read the plan")?.get(position).cloned().flatten();
        let input = job
            .spec
            .inputs
            .get(position)
            .with_context(|| format!("job {job_id} has no input {position}"))?;
        let paths: Vec<_> = blocks.iter().map(|block| block.path.as_path().to_owned()).collect();
        let local: Vec<_> = blocks
            .iter()
            .zip(&paths)
            .map(|(block, path)| LocalBlock { block, path, has_holes: false })
            .collect();
        let decoded = tables::decode(&DecodeRequest {
            blocks: &local,
            options: &input.table,
            schema: schema.as_ref(),
            with_lines: false,
        });
        // Only now, because another program may change a file while it is read.
        check_input(&descriptor, &job_id, true)?;
        let decoded = decoded.map_err(anyhow::Error::from)?;
        let write = || format!("write {}", to.display());
        let file = File::create_new(to).with_context(write)?;
        let written = write_parquet(&decoded.batch, file).with_context(write);
        if written.is_err() {
            // Otherwise the next call would find a file.
            let _ = std::fs::remove_file(to);
        }
        Ok(written?)
    }
}
