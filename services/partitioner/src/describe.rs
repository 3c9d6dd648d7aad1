//! Describes the columns of table inputs for `gristmill plan`.

use protocol::{Input, InputKind, JobSpec};
use tables::Sketch;

use crate::blocks::{LocalFile, table_error};
use crate::error::Result;
use crate::inputs::Inputs;
use crate::listing::Listed;
use crate::plan::partition_format;
use crate::remote::Fetch;
use crate::schema;

/// Bytes read of an object: some hundred rows.
const HEAD_BYTES: u64 = 256 * 1024;

impl Inputs {
    /// Returns the columns of each input, from its first file that is not empty; none for inputs of type `file`.
    pub fn describe(&self, spec: &JobSpec) -> Vec<Result<Vec<Sketch>>> {
        let describe = |input: &Input| match input.kind {
            InputKind::Tabular if spec.rank_mini_batch_count == 0 => {
                let paths = input.table.path_column.iter().map(|name| tables::path_column(name));
                Ok(paths.chain(self.describe_one(spec, input)?).collect())
            }
            _ => Ok(Vec::new()),
        };
        spec.inputs.iter().map(describe).collect()
    }

    fn describe_one(&self, spec: &JobSpec, input: &Input) -> Result<Vec<Sketch>> {
        let has_bytes =
            |listed: &Result<Listed>| listed.as_ref().map_or(true, |listed| listed.size != Some(0));
        let Some(listed) = self.files(spec, input).find(has_bytes).transpose()? else {
            return Ok(Vec::new());
        };
        let bad_table = |error| table_error(&input.name, &listed.path, error);
        let is_local = !listed.path.is_url();
        let format = partition_format(spec, input)?;
        let from_path = format.map_or_else(Vec::new, |format| format.names().to_vec());
        if !input.table.format.is_text() {
            let file =
                LocalFile::open(&self.remote, &input.name, &listed.path, Fetch::ParquetFooter)?;
            let own =
                tables::parquet_sketches(file.path(), &input.table, is_local).map_err(bad_table)?;
            return Ok(own
                .into_iter()
                .chain(from_path.iter().map(|name| tables::from_path(name)))
                .collect());
        }
        let schema = schema::infer(input, || self.files(spec, input), &self.remote, &from_path)?;
        if tables::detect::named(listed.path.as_bytes()).compression.is_some() && !is_local {
            return Ok(tables::schema_sketches(&schema));
        }
        let file =
            LocalFile::open(&self.remote, &input.name, &listed.path, Fetch::Head(HEAD_BYTES))?;
        tables::text_sketches(file.path(), &input.table, &schema, from_path.len())
            .map_err(bad_table)
    }
}
