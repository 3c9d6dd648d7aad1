//! The decisions of the engine about each input of a job: format, encoding, header, columns and types.

use job_file::Parsed;
use partitioner::{Sketch, Survey};
use protocol::{HeaderMode, Input, InputKind};
use serde::Serialize;

/// The decisions about one input.
#[derive(Debug, Serialize)]
pub struct Decisions {
    /// Name of the input.
    pub name: String,
    /// Type of the input.
    #[serde(rename = "type")]
    pub kind: InputKind,
    /// The files of a table.
    #[serde(flatten)]
    pub survey: Option<Survey>,
    /// The format of text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextDecisions>,
    /// Columns with their types, reasons and samples.
    pub columns: Vec<Sketch>,
    /// Why the columns are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns_problem: Option<String>,
}

/// The format of text.
#[derive(Debug, Serialize)]
pub struct TextDecisions {
    /// Its encoding.
    pub encoding: String,
    /// The separator of fields, as a job file would write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// Whether files begin with a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderMode>,
}

impl Decisions {
    /// Returns the decisions about every input of a surveyed job. Reads the first rows.
    pub fn of(parsed: &Parsed, surveys: Vec<Option<Survey>>) -> Vec<Self> {
        let described = parsed.listings.describe(&parsed.spec);
        let inputs = parsed.spec.inputs.iter().zip(surveys).zip(described);
        let decisions = inputs.map(|((input, survey), columns)| {
            let (columns, columns_problem) = match columns {
                Ok(columns) => (columns, None),
                Err(error) => (Vec::new(), Some(format!("{error:#}"))),
            };
            let text = survey
                .as_ref()
                .filter(|survey| survey.format.is_text())
                .map(|_| TextDecisions::of(input));
            Self {
                name: input.name.clone(),
                kind: input.kind,
                survey,
                text,
                columns,
                columns_problem,
            }
        });
        decisions.collect()
    }
}

impl TextDecisions {
    fn of(input: &Input) -> Self {
        let table = &input.table;
        let is_delimited = table.format.is_delimited();
        Self {
            encoding: table.encoding.clone(),
            delimiter: is_delimited.then(|| tables::delimiter_shown(table.delimiter)),
            header: is_delimited.then_some(table.header),
        }
    }
}
