//! Prints the decisions about each input for `gristmill plan`.

use engine::Decisions;
use engine::words::counted;
use indicatif::HumanBytes;
use partitioner::Sketch;
use protocol::HeaderMode;

/// Maximum widths in the table of columns, in characters.
const NAME_WIDTH_MAX: usize = 32;
const TYPE_WIDTH_MAX: usize = 20;
const SAMPLES_WIDTH_MAX: usize = 48;

pub fn lines(decisions: &Decisions) -> Vec<String> {
    let name = &decisions.name;
    let Some(survey) = &decisions.survey else {
        return vec![format!("input {name}: files of any content")];
    };
    let more = if survey.is_whole {
        ""
    } else {
        " examined; there are more, which are checked when they are read"
    };
    let empty = match survey.empty_files {
        0 => String::new(),
        empty => format!("; {empty} of them empty"),
    };
    let files = counted(survey.files, "file");
    let mut lines = vec![
        format!("input {name}: a table in {files} of {}{empty}{more}", HumanBytes(survey.bytes)),
        format!("  format: {}, {}", survey.format.word(), survey.format_reason),
    ];
    let compressed = survey
        .compressed_files
        .iter()
        .map(|(word, files)| format!("{word} ({})", counted(*files, "file")));
    let compressed: Vec<String> = compressed.collect();
    if !compressed.is_empty() {
        lines.push(format!("  compression: {}, by the names of the files", compressed.join(", ")));
    }
    if let Some(text) = &decisions.text {
        let mark = survey.byte_order_mark.map_or("no byte order mark".to_owned(), |mark| {
            format!("with the byte order mark of {mark}, which takes precedence")
        });
        lines.push(format!("  encoding: {}, {mark}", text.encoding));
        lines.extend(text.delimiter.iter().map(|delimiter| format!("  delimiter: `{delimiter}`")));
        lines.extend(text.header.map(|header| {
            let meaning = match header {
                HeaderMode::AllFilesSameHeaders => "the first line of each file names its columns",
                HeaderMode::NoHeader => "none, every line is a row",
                HeaderMode::FromFirstFile => "the first line of the first file names its columns",
                HeaderMode::AllFilesDifferentHeaders => {
                    "the first line of each file names its own columns; the table has those of all files"
                }
            };
            format!("  header: {meaning}")
        }));
    }
    lines.push(format!("  columns: {}", decisions.columns.len()));
    lines.extend(column_lines(&decisions.columns));
    lines.extend(
        decisions.columns_problem.iter().map(|problem| format!("  columns are unknown: {problem}")),
    );
    lines.extend(survey.notes.iter().map(|note| format!("  note: {note}")));
    lines
}

fn column_lines(columns: &[Sketch]) -> impl Iterator<Item = String> {
    let samples = |column: &Sketch| column.samples.join(", ");
    let width = |text: &dyn Fn(&Sketch) -> String, most: usize| {
        columns.iter().map(|column| text(column).chars().count()).max().unwrap_or(0).min(most)
    };
    let name = width(&|column| column.name.clone(), NAME_WIDTH_MAX);
    let kind = width(&|column| column.column_type.clone(), TYPE_WIDTH_MAX);
    let shown = width(&samples, SAMPLES_WIDTH_MAX);
    columns.iter().map(move |column| {
        let Sketch { name: own, column_type, reason, .. } = column;
        format!("    {own:<name$}  {column_type:<kind$}  {:<shown$}  {reason}", samples(column))
    })
}
