//! Finds lines of requirements that pip would refuse, before the installation begins: lines that are not requirements,
//! files that do not exist, and names of modules in place of packages.

use std::path::Path;

/// Modules whose package has another name. pip finds no working package under the name of the module.
const PACKAGES: &[(&str, &str)] = &[
    ("cv2", "opencv-python"),
    ("pil", "pillow"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
];
const FILE_OPTIONS: &[&str] = &["-r", "--requirement", "-c", "--constraint"];
const EDITABLE: &[&str] = &["-e", "--editable"];
/// Maximum nesting of files that refer to other files.
const DEPTH_MAX: usize = 10;

/// Returns the first fault in a requirements file, or in those that it names: file, line and reason.
pub fn fault_of_file(path: &Path) -> Option<String> {
    fault_at_depth(path, 0)
}

fn fault_at_depth(path: &Path, depth: usize) -> Option<String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return Some(format!("{} cannot be read: {error}", path.display())),
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut lines = text.trim_start_matches('\u{feff}').lines().zip(1..);
    while let Some((first, number)) = lines.next() {
        let mut line = first.trim_end().to_owned();
        while line.ends_with('\\') {
            line.pop();
            line.push_str(lines.next().map_or("", |(more, _)| more.trim_end()));
        }
        let said = |fault: String| format!("{}:{number}: {fault}", path.display());
        let (option, value) = option_of(&line);
        if FILE_OPTIONS.contains(&option) && is_local(value) {
            let file = folder.join(value);
            if !file.is_file() {
                return Some(said(format!("there is no file {}", file.display())));
            }
            if depth < DEPTH_MAX
                && let Some(fault) = fault_at_depth(&file, depth + 1)
            {
                return Some(fault);
            }
        } else if let Some(fault) = fault_of_line(&line, folder) {
            return Some(said(fault));
        }
    }
    None
}

/// Returns the fault of one requirement. `folder`: the base of paths in it.
pub fn fault_of_line(line: &str, folder: &Path) -> Option<String> {
    let comment = line.find(" #").unwrap_or(line.len());
    let line = line[..comment].trim();
    if line.is_empty() || line.starts_with('#') || line.contains("${") {
        return None;
    }
    let (option, value) = option_of(line);
    let wanted = if EDITABLE.contains(&option) { value } else { line };
    if wanted.starts_with('-') || !is_local(wanted) {
        return None;
    }
    let end = wanted.find([' ', '[', ';']).unwrap_or(wanted.len());
    let is_wheel = wanted[..end].ends_with(".whl") || wanted[..end].ends_with(".tar.gz");
    if EDITABLE.contains(&option) || wanted.starts_with(['.', '/']) || is_wheel {
        let file = folder.join(&wanted[..end]);
        return (!file.exists()).then(|| format!("there is no {}", file.display()));
    }
    let end = wanted
        .find(|character: char| !(character.is_ascii_alphanumeric() || "-_.".contains(character)));
    let (name, rest) = wanted.split_at(end.unwrap_or(wanted.len()));
    if name.is_empty()
        || !rest.trim_start().is_empty()
            && !rest.trim_start().starts_with(['=', '<', '>', '!', '~', '[', ';', '@', '(', '-'])
    {
        return Some(format!("{wanted:?} is not a requirement, such as `pandas==2.2`"));
    }
    let package = PACKAGES
        .iter()
        .find(|(module, _)| name.eq_ignore_ascii_case(module))
        .map(|(_, package)| package);
    package.map(|package| {
        format!("{name} is the name of a module: write {package}, the name of its package")
    })
}

/// Splits a line into an option and its value, which a blank or `=` separates.
fn option_of(line: &str) -> (&str, &str) {
    let line = line.trim();
    let (option, value) = line.split_once([' ', '=']).unwrap_or((line, ""));
    let value = value.find(" #").map_or(value, |end| &value[..end]);
    (option, value.trim().trim_matches('"'))
}

fn is_local(value: &str) -> bool {
    !value.contains("://") && !value.contains(" @ ") && !value.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_requirements_have_no_fault() {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::write(folder.path().join("more.txt"), "tqdm\n").expect("writable");
        std::fs::write(folder.path().join("own-1.0-py3-none-any.whl"), "").expect("writable");
        let file = folder.path().join("requirements.txt");
        let text = "# a list\n\npandas==2.2  # tables\nmlflow[extras]>=2 ; python_version > '3.9'\nsix (>=1)\n-r more.txt\n\
                    --requirement=more.txt\n--extra-index-url https://host/simple\n-e .\n./own-1.0-py3-none-any.whl\n\
                    git+https://host/x.git@main\nx @ https://host/x.whl\n${NAME}\nnumpy \\\n  ==1.26 --hash=sha256:0\n";
        std::fs::write(&file, text).expect("writable");
        assert_eq!(fault_of_file(&file), None);
    }

    #[test]
    fn faults_are_named_with_their_line() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("requirements.txt");
        for (line, expected) in [
            ("-r none.txt", "there is no file "),
            ("./none.whl", "there is no "),
            ("-e none", "there is no "),
            ("dependencies:", "\"dependencies:\" is not a requirement"),
            ("two words", "\"two words\" is not a requirement"),
            ("sklearn", "sklearn is the name of a module: write scikit-learn"),
            ("PIL==1.1.7", "PIL is the name of a module: write pillow"),
        ] {
            std::fs::write(&file, format!("six\n{line}\n")).expect("writable");
            let fault = fault_of_file(&file).expect(line);
            assert!(
                fault.starts_with(&format!("{}:2: {expected}", file.display())),
                "{line}: {fault}"
            );
        }
        std::fs::write(folder.path().join("more.txt"), "\n\na b\n").expect("writable");
        std::fs::write(&file, "-r more.txt\n").expect("writable");
        let fault = fault_of_file(&file).expect("the other file");
        assert!(fault.contains("more.txt:3: \"a b\" is not a requirement"), "{fault}");
        std::fs::write(&file, [b'a', 0xff]).expect("writable");
        assert!(fault_of_file(&file).expect("no text").contains("cannot be read"));
        assert!(fault_of_file(Path::new("/no/such")).expect("no file").contains("cannot be read"));
    }
}
