//! Reads another file that a document refers to. Its mistakes name that file.

use std::path::Path;

use crate::{Entry, Fault, Location, Problems, yaml};

/// Returns the entries of the file, with locations in it. `None`: a mistake, which is recorded. `at`: the reference;
/// `example`: a typical key and value of such a file.
pub fn read(
    path: &Path,
    at: Location,
    field: &str,
    example: &str,
    problems: &Problems,
) -> Option<Vec<Entry>> {
    let shown = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let fault = Fault::of(format!("{shown:?}"), "a file that can be read");
            problems.add(at, field, fault.saying(format!("{shown} cannot be read: {error}")));
            return None;
        }
    };
    let number = problems.other_file(shown.clone());
    let inner = Problems::new(shown);
    let entries = yaml::read_like(example, &text, &inner);
    if let Err(found) = inner.finish() {
        for problem in found {
            let location = Location::Other(number, problem.line.unwrap_or(1));
            let fault = Fault::of(problem.found, problem.allowed).saying(problem.message);
            problems.add(location, &problem.field, fault);
        }
        return None;
    }
    let mut entries = entries?;
    let change = |location: Location| match location {
        Location::Line(line) => Location::Other(number, line),
        location => location,
    };
    entries.iter_mut().for_each(|entry| entry.relocate_each(&change));
    Some(entries)
}
