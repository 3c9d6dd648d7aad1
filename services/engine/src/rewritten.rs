//! Another format for the output of a job that has not written it.

use anyhow::{Context, anyhow};
use protocol::{JobState, OutputAction, OutputFormat};

use crate::{For, Jobs};

impl Jobs {
    /// Lets an ended job write its output in another format when it is retried; the file gets the extension of the
    /// format. `wanted`: its id, the beginning of its id, or its name.
    ///
    /// The rows of the native formats are tables until the file is written, so none runs again.
    pub async fn change_output_format(&self, wanted: &str, format: OutputFormat) -> crate::Result<()> {
        let mut job = self.find(wanted, For::Change).await?;
        let job_id = &job.spec.job_id;
        let extension = match format {
            OutputFormat::Csv => "csv",
            OutputFormat::Jsonl => "jsonl",
            OutputFormat::Parquet => "parquet",
            OutputFormat::Text => return Err(anyhow!("an output of text is written as the rows come in").into()),
        };
        match &job.result {
            None => return Err(anyhow!("job {job_id} has not ended: cancel it first, or wait").into()),
            Some(result) if result.state == JobState::Completed => {
                return Err(anyhow!("job {job_id} has written its output: convert that file instead").into());
            }
            Some(_) => {}
        }
        let output = &mut job.spec.output;
        if output.action != OutputAction::AppendRow || output.format == OutputFormat::Text {
            let message = format!(
                "job {job_id} has no rows with columns: only an output_format of native has them; start a new job with it"
            );
            return Err(anyhow!(message).into());
        }
        let stem = output.file_name.rsplit_once('.').map_or(output.file_name.as_str(), |(stem, _)| stem);
        output.file_name = format!("{stem}.{extension}");
        output.format = format;
        Ok(job.store.put_spec(&job.spec).await.context("change the format of the output")?)
    }
}
