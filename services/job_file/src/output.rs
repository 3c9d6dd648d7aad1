//! `output`, `outputs`, `append_row_file_name`, `output_format`: the place of results, and their format.

use std::path::Path;

use protocol::{ItemPath, JobSpec, OutputAction, OutputFormat};
use serde_json::{Map, Value as Json};

use crate::keys::default_file_name;
use crate::paths::without_file_scheme;
use crate::values::{choice, key_name, word};
use crate::{Fault, Location, Node, Paths, Problems, Section};

const FILE_NAME: &str = "append_row_file_name";
/// Longest file name that common file systems allow.
const FILE_NAME_BYTES_MAX: usize = 255;
/// Longest name of an output beside which `.NAME.schema.json` fits.
const SCHEMA_OF_BYTES_MAX: usize = FILE_NAME_BYTES_MAX - ".".len() - ".schema.json".len();

/// Reads the keys of the output into `job`. `output_action` must have been read.
pub fn read_output(top: &Section<'_>, paths: &Paths, job: &mut JobSpec) {
    let output = &mut job.output;
    let is_appended = output.action == OutputAction::AppendRow;
    output.folder = top.value("output", |node| folder(node, paths)).unwrap_or_default();
    if top.get("output").is_none() && is_appended {
        let fault = Fault::missing("a folder, or output_action: summary_only");
        top.refuse(
            "output",
            top.location_of("output"),
            fault.saying("Please specify output parameter."),
        );
    }
    let allowed = "a mapping of names to folders: {images: output/images}";
    job.outputs = top.named("outputs", allowed, |entry| {
        key_name(entry)?;
        folder(&entry.node, paths)
    });

    // Without an output file, its name is not checked, as in Azure ML.
    let name = if is_appended { top.value(FILE_NAME, file_name) } else { None };
    output.file_name = name.unwrap_or_else(|| default_file_name().to_owned());
    let is_native =
        top.value("output_format", |node| choice(node, &[("text", false), ("native", true)]));
    let by_extension =
        match Path::new(&output.file_name).extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Some(OutputFormat::Csv),
            Some("jsonl") => Some(OutputFormat::Jsonl),
            Some("parquet") => Some(OutputFormat::Parquet),
            _ => None,
        };
    let location =
        top.location_of(if top.get(FILE_NAME).is_some() { FILE_NAME } else { "output_format" });
    output.format = OutputFormat::Text;
    match (is_native == Some(true) && is_appended, by_extension) {
        (true, Some(format)) => {
            output.format = format;
            // The file with the schema of CSV and JSON lines has a longer name.
            let bytes = output.file_name.len();
            if bytes > SCHEMA_OF_BYTES_MAX {
                let message = format!(
                    "the name has {bytes} bytes, and file systems take {SCHEMA_OF_BYTES_MAX} with a schema"
                );
                top.refuse(
                    FILE_NAME,
                    location,
                    Fault::of(format!("{:.40?}…", output.file_name), "a shorter name")
                        .saying(message),
                );
            }
        }
        (true, None) => {
            let allowed = "with output_format native, a name that ends in .csv, .jsonl or .parquet";
            top.refuse(FILE_NAME, location, Fault::of(format!("{:?}", output.file_name), allowed));
        }
        (false, Some(OutputFormat::Jsonl | OutputFormat::Parquet)) => {
            let message = "the file will hold plain text, whatever its name says; output_format: native writes this format";
            top.problems.warn(location, FILE_NAME, message);
        }
        (false, _) => {}
    }
}

fn folder(node: &Node, paths: &Paths) -> Result<ItemPath, Fault> {
    if word(node)?.contains("${") {
        let allowed = "a folder or URL as it is; placeholders stand for paths in `arguments` and `environment_variables`";
        return Err(Fault::new(node, allowed)
            .saying("it holds a placeholder, which would become a folder of this name"));
    }
    // The checks of outputs, and the locks that keep two jobs from writing one file, need a path.
    let path = without_file_scheme(paths.path_or_url(node)?);
    // `metadata` follows links. Gristmill makes a folder that does not exist.
    match !path.is_url() && path.as_path().metadata().is_ok_and(|metadata| !metadata.is_dir()) {
        true => {
            Err(Fault::new(node, "a folder, which is made if it does not exist")
                .saying("it is a file"))
        }
        false => Ok(path),
    }
}

fn file_name(node: &Node) -> Result<String, Fault> {
    const FORBIDDEN: &str = r##"~"#%&*:<>?/\{|}"##;
    let allowed = r##"a file name without any of ~ " # % & * : < > ? / \ { | }"##;
    let name = word(node)?;
    let illegal = |character: char| FORBIDDEN.contains(character) || character.is_control();
    if name.len() > FILE_NAME_BYTES_MAX {
        let message = format!(
            "the name has {} bytes, and file systems take {FILE_NAME_BYTES_MAX}",
            name.len()
        );
        return Err(Fault::new(node, "a shorter name").saying(message));
    }
    match name.chars().any(illegal) || name == "." || name == ".." {
        true => Err(Fault::new(node, allowed)
            .saying("Parameter append_row_file_name must be a valid UNIX file name.")),
        false => Ok(name),
    }
}

/// File in `source_directory` with settings for writing DataFrames as text.
pub const SETTINGS_FILE: &str = "parallel_run_step.settings.json";

/// Keyword arguments of `to_csv` that make sense for one stream of text.
const TO_CSV_ARGUMENTS: &str = "sep, na_rep, float_format, columns, header, index, index_label, mode, encoding, quoting, \
                                quotechar, lineterminator, line_terminator, chunksize, date_format, doublequote, \
                                escapechar, decimal, errors";

/// Reads `{"append_row": {"pandas.DataFrame.to_csv": {…}}}` from the settings file. Without a file, returns no
/// arguments.
pub fn read_to_csv_arguments(source_directory: &Path, problems: &Problems) -> Map<String, Json> {
    let path = source_directory.join(SETTINGS_FILE);
    let allowed = r#"{"append_row": {"pandas.DataFrame.to_csv": {"sep": ","}}}"#;
    let fail = |location: Location, field: &str, fault: Fault| {
        problems.add_to_file(path.display().to_string(), location, field, fault);
        Map::new()
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Map::new(),
        Err(error) => {
            let fault =
                Fault::of(error.to_string(), allowed).saying("the settings file cannot be read");
            return fail(Location::File, "", fault);
        }
    };
    let mut settings: Json =
        match serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text)) {
            Ok(settings) => settings,
            Err(error) => {
                let fault = Fault::of(error.to_string(), allowed).saying("not valid JSON");
                return fail(Location::Line(error.line()), "", fault);
            }
        };
    let not_an_object = |value: &Json| Fault::of(format!("{value:.60}"), allowed);
    for (field, key) in [("", "append_row"), ("append_row", "pandas.DataFrame.to_csv")] {
        let Json::Object(mut object) = settings else {
            return fail(Location::File, field, not_an_object(&settings));
        };
        let Some(value) = object.remove(key) else { return Map::new() };
        settings = value;
    }
    let field = "append_row.pandas.DataFrame.to_csv";
    let Json::Object(arguments) = settings else {
        return fail(Location::File, field, not_an_object(&settings));
    };
    for name in
        arguments.keys().filter(|name| !TO_CSV_ARGUMENTS.split(", ").any(|known| known == *name))
    {
        let message = "not an argument of to_csv that can be set";
        let fault = Fault::unknown(name, TO_CSV_ARGUMENTS.split(", "), message);
        fail(Location::File, field, fault);
    }
    arguments
}
