//! `output`, `output_action`, `append_row_file_name`, `output_format`: what becomes of the results.

use std::path::Path;

use protocol::{ItemPath, Output, OutputAction, OutputFormat};
use serde_json::{Map, Value as Json};

use super::paths::Paths;
use super::problem::{Fault, Place, Problems, nearest};
use super::section::{Section, choice, word};
use super::yaml::Node;

const FILE_NAME_DEFAULT: &str = "parallel_run_step.txt";
/// Longest name that common file systems take.
const FILE_NAME_BYTES_MAX: usize = 255;
const NATIVE_ALLOWED: &str = "with output_format native, a name that ends in .csv, .jsonl or .parquet";

/// Reads everything about the output; the header flag and the settings file come later.
pub fn read_output(top: &Section<'_>, paths: &Paths, problems: &mut Problems) -> Output {
    let actions = [("summary_only", OutputAction::SummaryOnly), ("append_row", OutputAction::AppendRow)];
    let must_be = "Parameter output_action must be summary_only or append_row.";
    let missing = Fault::of("nothing", "summary_only, append_row").saying(must_be);
    let action = top.required("output_action", problems, missing, |node| {
        choice(node, &actions).map_err(|fault| fault.saying(must_be))
    });
    let action = action.map_or(OutputAction::SummaryOnly, |action| action.value);

    let folder = top.value("output", problems, |node| folder(node, paths));
    if top.get("output").is_none() && action == OutputAction::AppendRow {
        let fault = Fault::of("nothing", "a folder, or output_action: summary_only");
        problems.add(top.place_of("output"), "output", fault.saying("Please specify output parameter."));
    }

    let native = top.value("output_format", problems, |node| choice(node, &[("text", false), ("native", true)]));
    let native = native.unwrap_or(false);
    let file_name = match action {
        OutputAction::AppendRow => top.read("append_row_file_name", problems, file_name),
        OutputAction::SummaryOnly => None,
    };
    let place = file_name.as_ref().map_or(top.place_of("output_format"), |given| given.place);
    let file_name = file_name.map_or(FILE_NAME_DEFAULT.to_owned(), |given| given.value);
    let by_extension = match Path::new(&file_name).extension().and_then(|extension| extension.to_str()) {
        Some("csv") => Some(OutputFormat::Csv),
        Some("jsonl") => Some(OutputFormat::Jsonl),
        Some("parquet") => Some(OutputFormat::Parquet),
        _ => None,
    };
    let format = match (native && action == OutputAction::AppendRow, by_extension) {
        (true, Some(format)) => format,
        (true, None) => {
            problems.add(place, "append_row_file_name", Fault::of(format!("{file_name:?}"), NATIVE_ALLOWED));
            OutputFormat::Text
        }
        (false, Some(OutputFormat::Jsonl | OutputFormat::Parquet)) => {
            let message =
                "the file will hold plain text, whatever its name says; output_format: native writes this format";
            problems.warn(place, "append_row_file_name", message);
            OutputFormat::Text
        }
        (false, _) => OutputFormat::Text,
    };
    Output {
        action,
        folder: folder.unwrap_or_else(|| ItemPath::from("")),
        file_name,
        format,
        header: false,
        to_csv_arguments: Map::new(),
    }
}

fn folder(node: &Node, paths: &Paths) -> Result<ItemPath, Fault> {
    let path = paths.path_or_url(node)?;
    // `metadata` follows links; a folder that is not there yet will be made.
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
    match name.chars().any(illegal) || name.len() > FILE_NAME_BYTES_MAX || name == "." || name == ".." {
        true => Err(Fault::new(node, allowed).saying("Parameter append_row_file_name must be a valid UNIX file name.")),
        false => Ok(name),
    }
}

/// File in the snapshot root that changes how DataFrames become text.
const SETTINGS_FILE: &str = "parallel_run_step.settings.json";

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

/// `{"append_row": {"pandas.DataFrame.to_csv": {…}}}` from the settings file, nothing where there is none.
pub fn read_to_csv_arguments(source_directory: &Path, problems: &mut Problems) -> Map<String, Json> {
    let path = source_directory.join(SETTINGS_FILE);
    let allowed = r#"{"append_row": {"pandas.DataFrame.to_csv": {"sep": ","}}}"#;
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Map::new(),
        Err(error) => {
            let fault = Fault::of(error.to_string(), allowed).saying("the settings file cannot be read");
            problems.add_to_file(path.display().to_string(), Place::File, "", fault);
            return Map::new();
        }
    };
    let mut fail = |place: Place, field: &str, fault: Fault| {
        problems.add_to_file(path.display().to_string(), place, field, fault);
        Map::new()
    };
    let settings: Json = match serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text)) {
        Ok(settings) => settings,
        Err(error) => {
            let fault = Fault::of(error.to_string(), allowed).saying("not valid JSON");
            return fail(Place::Line(error.line()), "", fault);
        }
    };
    let not_an_object = |value: &Json| Fault::of(format!("{value:.60}"), allowed);
    let Json::Object(mut settings) = settings else {
        return fail(Place::File, "", not_an_object(&settings));
    };
    let mut append_row = match settings.remove("append_row") {
        None => return Map::new(),
        Some(Json::Object(append_row)) => append_row,
        Some(value) => return fail(Place::File, "append_row", not_an_object(&value)),
    };
    let arguments = match append_row.remove("pandas.DataFrame.to_csv") {
        None => return Map::new(),
        Some(Json::Object(arguments)) => arguments,
        Some(value) => return fail(Place::File, "append_row.pandas.DataFrame.to_csv", not_an_object(&value)),
    };
    for name in arguments.keys().filter(|name| !TO_CSV_ARGUMENTS.contains(&name.as_str())) {
        let hint = nearest(name, TO_CSV_ARGUMENTS.iter().copied())
            .map_or(String::new(), |nearest| format!("; did you mean {nearest:?}?"));
        let fault = Fault::of(format!("{name:?}"), TO_CSV_ARGUMENTS.join(", "));
        let message = format!("not an argument of to_csv that can be set{hint}");
        fail(Place::File, "append_row.pandas.DataFrame.to_csv", fault.saying(message));
    }
    arguments
}
