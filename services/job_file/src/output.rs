//! `output`, `outputs`, `append_row_file_name`, `output_format`: where results go, and how they become text.

use std::path::Path;

use protocol::{ItemPath, JobSpec, OutputAction, OutputFormat};
use serde_json::{Map, Value as Json};

use crate::keys::JOB;
use crate::paths::Paths;
use crate::problem::{Fault, Problems, nearest};
use crate::section::Section;
use crate::tree::{Location, Node};
use crate::values::{choice, key_name, word};

const FILE_NAME: &str = "append_row_file_name";
/// Longest name that common file systems take.
const FILE_NAME_BYTES_MAX: usize = 255;

/// Reads the keys of the output into `job`. `output_action` must have been read.
pub fn read_output(top: &Section<'_>, paths: &Paths, job: &mut JobSpec, problems: &mut Problems) {
    let output = &mut job.output;
    let is_appended = output.action == OutputAction::AppendRow;
    output.folder = top.value("output", problems, |node| folder(node, paths)).unwrap_or_default();
    if top.get("output").is_none() && is_appended {
        let fault = Fault::of("nothing", "a folder, or output_action: summary_only");
        problems.add(top.location_of("output"), "output", fault.saying("Please specify output parameter."));
    }
    let allowed = "a mapping of names to folders: {images: output/images}";
    job.outputs = top.named("outputs", allowed, problems, |entry| {
        key_name(entry)?;
        folder(&entry.node, paths)
    });

    // Without a file its name does not matter, as in the original.
    let name = if is_appended { top.value(FILE_NAME, problems, file_name) } else { None };
    output.file_name = name.unwrap_or_else(|| JOB.default_of(FILE_NAME).to_owned());
    let is_native = top.value("output_format", problems, |node| choice(node, &[("text", false), ("native", true)]));
    let by_extension = match Path::new(&output.file_name).extension().and_then(|extension| extension.to_str()) {
        Some("csv") => Some(OutputFormat::Csv),
        Some("jsonl") => Some(OutputFormat::Jsonl),
        Some("parquet") => Some(OutputFormat::Parquet),
        _ => None,
    };
    let location = top.location_of(if top.get(FILE_NAME).is_some() { FILE_NAME } else { "output_format" });
    output.format = OutputFormat::Text;
    match (is_native == Some(true) && is_appended, by_extension) {
        (true, Some(format)) => output.format = format,
        (true, None) => {
            let allowed = "with output_format native, a name that ends in .csv, .jsonl or .parquet";
            problems.add(location, FILE_NAME, Fault::of(format!("{:?}", output.file_name), allowed));
        }
        (false, Some(OutputFormat::Jsonl | OutputFormat::Parquet)) => {
            let message =
                "the file will hold plain text, whatever its name says; output_format: native writes this format";
            problems.warn(location, FILE_NAME, message);
        }
        (false, _) => {}
    }
}

fn folder(node: &Node, paths: &Paths) -> Result<ItemPath, Fault> {
    if word(node)?.contains("${") {
        let allowed =
            "a folder or URL as it is; placeholders stand for paths in `arguments` and `environment_variables`";
        return Err(
            Fault::new(node, allowed).saying("it holds a placeholder, which would become a folder of this name")
        );
    }
    let path = paths.path_or_url(node)?;
    // `metadata` follows links. Gristmill makes a folder that does not exist.
    match !path.is_url() && path.as_path().metadata().is_ok_and(|metadata| !metadata.is_dir()) {
        true => Err(Fault::new(node, "a folder, which is made if it does not exist").saying("it is a file")),
        false => Ok(path),
    }
}

fn file_name(node: &Node) -> Result<String, Fault> {
    const FORBIDDEN: &str = r##"~"#%&*:<>?/\{|}"##;
    let allowed = r##"a file name without any of ~ " # % & * : < > ? / \ { | }"##;
    let name = word(node)?;
    let illegal = |character: char| FORBIDDEN.contains(character) || character.is_control();
    if name.len() > FILE_NAME_BYTES_MAX {
        let message = format!("the name has {} bytes, and file systems take {FILE_NAME_BYTES_MAX}", name.len());
        return Err(Fault::new(node, "a shorter name").saying(message));
    }
    match name.chars().any(illegal) || name == "." || name == ".." {
        true => Err(Fault::new(node, allowed).saying("Parameter append_row_file_name must be a valid UNIX file name.")),
        false => Ok(name),
    }
}

/// File in `source_directory` that changes how DataFrames become text.
pub const SETTINGS_FILE: &str = "parallel_run_step.settings.json";

/// Keyword arguments of `to_csv` that make sense for one stream of text.
const TO_CSV_ARGUMENTS: &[&str] = &[
    "sep",
    "na_rep",
    "float_format",
    "columns",
    "header",
    "index",
    "index_label",
    "mode",
    "encoding",
    "quoting",
    "quotechar",
    "lineterminator",
    "line_terminator",
    "chunksize",
    "date_format",
    "doublequote",
    "escapechar",
    "decimal",
    "errors",
];

/// Reads `{"append_row": {"pandas.DataFrame.to_csv": {…}}}` from the settings file. Without a file there are no arguments.
pub fn read_to_csv_arguments(source_directory: &Path, problems: &mut Problems) -> Map<String, Json> {
    let path = source_directory.join(SETTINGS_FILE);
    let allowed = r#"{"append_row": {"pandas.DataFrame.to_csv": {"sep": ","}}}"#;
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Map::new(),
        Err(error) => {
            let fault = Fault::of(error.to_string(), allowed).saying("the settings file cannot be read");
            problems.add_to_file(path.display().to_string(), Location::File, "", fault);
            return Map::new();
        }
    };
    let mut fail = |location: Location, field: &str, fault: Fault| {
        problems.add_to_file(path.display().to_string(), location, field, fault);
        Map::new()
    };
    let settings: Json = match serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text)) {
        Ok(settings) => settings,
        Err(error) => {
            let fault = Fault::of(error.to_string(), allowed).saying("not valid JSON");
            return fail(Location::Line(error.line()), "", fault);
        }
    };
    let not_an_object = |value: &Json| Fault::of(format!("{value:.60}"), allowed);
    let Json::Object(mut settings) = settings else {
        return fail(Location::File, "", not_an_object(&settings));
    };
    let mut append_row = match settings.remove("append_row") {
        None => return Map::new(),
        Some(Json::Object(append_row)) => append_row,
        Some(value) => return fail(Location::File, "append_row", not_an_object(&value)),
    };
    let arguments = match append_row.remove("pandas.DataFrame.to_csv") {
        None => return Map::new(),
        Some(Json::Object(arguments)) => arguments,
        Some(value) => return fail(Location::File, "append_row.pandas.DataFrame.to_csv", not_an_object(&value)),
    };
    for name in arguments.keys().filter(|name| !TO_CSV_ARGUMENTS.contains(&name.as_str())) {
        let hint = nearest(name, TO_CSV_ARGUMENTS.iter().copied())
            .map_or(String::new(), |nearest| format!("; did you mean {nearest:?}?"));
        let fault = Fault::of(format!("{name:?}"), TO_CSV_ARGUMENTS.join(", "));
        let message = format!("not an argument of to_csv that can be set{hint}");
        fail(Location::File, "append_row.pandas.DataFrame.to_csv", fault.saying(message));
    }
    arguments
}
