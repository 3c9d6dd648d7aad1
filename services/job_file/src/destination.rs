//! Checks that the job does not read the places of its results, and that it can write there. Every command that reads a
//! job file makes these checks before the first mini-batch.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ignore::gitignore::GitignoreBuilder;
use protocol::{Environment, ItemPath, JobSpec, OutputAction};
use rustix::fs::{Access, access, statvfs};
use storage::real_path;
use url::Url;

use crate::paths::{glob_folder, without_file_scheme};
use crate::{Fault, Node, Section};

/// A disk with less free space counts as full.
const ROOM_BYTES_MIN: u64 = 1024 * 1024;
const APART: &str = "a folder apart from what the job reads; one beside the inputs or inside source_directory is fine";

/// Reports outputs that would overwrite an input or that the next run would read, and outputs that cannot be written.
pub fn check(top: &Section<'_>, spec: &JobSpec, job_file: &Path) {
    let file =
        (spec.output.action == OutputAction::AppendRow).then_some(spec.output.file_name.as_str());
    let location = |key: &str| match key.split_once('.') {
        Some((key, name)) => {
            let entry =
                top.get(key).map_or(&[][..], Node::entries).iter().find(|entry| entry.key == name);
            entry.map_or(top.location, |entry| entry.location)
        }
        None => top.location_of(key),
    };
    let add = |key: &str, path: &ItemPath, message: String, allowed: &str| {
        let fault = Fault::of(format!("{:?}", path.display()), allowed).saying(message);
        top.refuse(key, location(key), fault);
    };
    const WRITABLE: &str = "a folder that can be written to, which is made if it does not exist";
    for (name, folder) in &spec.outputs {
        let key = format!("outputs.{name}");
        if let Some(message) = overlap(folder, None, spec) {
            add(&key, folder, message, APART);
        } else if file.is_some_and(|file| is_within(folder, &file_in(&spec.output.folder, file))) {
            add(
                &key,
                folder,
                "it would take the place of the output file".to_owned(),
                "another folder",
            );
        } else if let Some(message) = unwritable(folder, None) {
            add(&key, folder, message, WRITABLE);
        }
    }
    let output = &spec.output.folder;
    if output.as_bytes().is_empty() {
        return;
    }
    if let Some(message) = overlap(output, file, spec) {
        add("output", output, message, APART);
    }
    if let Some(message) = file.and_then(|file| overwritten(output, file, spec, job_file)) {
        let key = if top.get("append_row_file_name").is_some() {
            "append_row_file_name"
        } else {
            "output"
        };
        let replaced = file_in(output, file.unwrap_or_default());
        add(key, &replaced, message, "the name of a file that the job does not read");
    } else if let Some(message) = unwritable(output, file) {
        add("output", output, message, WRITABLE);
    }
}

/// Returns whether a path is `above`, or below it.
fn is_within(path: &ItemPath, above: &ItemPath) -> bool {
    match (path.is_url(), above.is_url()) {
        (true, true) => match [path, above].map(|url| Url::parse(&url.display())) {
            [Ok(path), Ok(above)] => storage::is_below(&path, &above),
            _ => false,
        },
        (false, false) => real_path(path.as_path()).starts_with(real_path(above.as_path())),
        _ => false,
    }
}

fn file_in(folder: &ItemPath, file: &str) -> ItemPath {
    match folder.is_url() {
        true => {
            ItemPath::from(format!("{}/{file}", folder.display().trim_end_matches('/')).as_str())
        }
        false => ItemPath::from(folder.as_path().join(file)),
    }
}

/// Describes the overlap of a folder with an input, a side input or the sources of the job. `file`: the job writes only
/// this file there, so the folder may contain other folders.
fn overlap(folder: &ItemPath, file: Option<&str>, spec: &JobSpec) -> Option<String> {
    let found_by = |input: &str| {
        format!("{input} matches files that the job writes there, so the next run would read them")
    };
    if folder.is_url() {
        // Patterns of URLs are compared component by component, like those of paths.
        let components: PathBuf = folder.as_path().components().collect();
        for (input, path) in named_paths(spec).filter(|(_, path)| path.is_url()) {
            let finds = |base: PathBuf| glob_finds(path.as_path(), &base, &components, file);
            if glob_folder(path.as_path()).is_some_and(finds) {
                return Some(found_by(&input));
            }
            if is_within(folder, &path) {
                return Some(format!(
                    "the output lies in {input}, so the next run would read what this one writes"
                ));
            }
        }
        return None;
    }
    let folder = real_path(folder.as_path());
    for (input, path) in named_paths(spec).filter(|(_, path)| !path.is_url()) {
        if let Some(base) = glob_folder(path.as_path()) {
            if glob_finds(path.as_path(), &real_path(&base), &folder, file) {
                return Some(found_by(&input));
            }
            continue;
        }
        let path = real_path(path.as_path());
        let effect = if input.starts_with("input") {
            ", so the next run would read what this one writes"
        } else {
            ""
        };
        match path.is_dir() {
            true if folder.starts_with(&path) => {
                return Some(format!("the output lies in {input}{effect}"));
            }
            true if file.is_none() && path.starts_with(&folder) => {
                return Some(format!("the output folder contains {input}"));
            }
            _ => {}
        }
    }
    let sources = real_path(spec.source_directory.as_path());
    match sources.strip_prefix(&folder) {
        Ok(below) if below.as_os_str().is_empty() => {
            Some(format!("the output folder is the folder of the script, {}", sources.display()))
        }
        Ok(_) if file.is_none() => Some(format!(
            "the output folder contains the folder of the script, {}",
            sources.display()
        )),
        _ => None,
    }
}

/// Iterates over the paths of all inputs and side inputs, each with words for messages. `file://` URLs are paths.
fn named_paths(spec: &JobSpec) -> impl Iterator<Item = (String, ItemPath)> {
    let inputs = spec.inputs.iter();
    let inputs = inputs
        .flat_map(|input| input.paths.iter().map(|path| (format!("input {}", input.name), path)));
    let all = inputs
        .chain(spec.side_inputs.iter().map(|(name, path)| (format!("side input {name}"), path)));
    all.map(|(words, path)| (words, without_file_scheme(path.clone())))
}

/// Returns whether a glob that begins in `base` finds the output file, or, without one, files in the output folder.
fn glob_finds(glob: &Path, base: &Path, folder: &Path, file: Option<&str>) -> bool {
    let Ok(pattern) = glob.strip_prefix(glob_folder(glob).unwrap_or_default()) else {
        return false;
    };
    let mut builder = GitignoreBuilder::new(base);
    if pattern
        .to_str()
        .is_none_or(|pattern| builder.add_line(None, &format!("/{pattern}")).is_err())
    {
        return false;
    }
    let Ok(matcher) = builder.build() else { return false };
    // Without an output file, the script may write files of any name.
    let finds = |name: &str| {
        folder.starts_with(base) && matcher.matched(folder.join(name), false).is_ignore()
    };
    file.map_or_else(|| finds("0") || finds("0/0"), finds)
}

/// Names the file of the job that the output file would replace.
fn overwritten(folder: &ItemPath, file: &str, spec: &JobSpec, job_file: &Path) -> Option<String> {
    let mut named = named_paths(spec);
    if folder.is_url() {
        let output = file_in(folder, file);
        let (input, _) =
            named.find(|(_, path)| is_within(&output, path) && is_within(path, &output))?;
        return Some(format!("the output would replace {input}"));
    }
    let output = real_path(&folder.as_path().join(file));
    let is = |path: &Path| real_path(path) == output;
    if let Some((input, _)) = named.find(|(_, path)| !path.is_url() && is(path.as_path())) {
        return Some(format!("the output would replace {input}"));
    }
    let sources = spec.source_directory.as_path();
    let is_module =
        |path: &Path| path.extension().is_some_and(|extension| extension == "py") && path.exists();
    let replaced = match &spec.environment {
        _ if is(&sources.join(&spec.entry_script)) => "the entry script",
        _ if is(job_file) => "the job file",
        Environment::Requirements { file, .. } if is(file.as_path()) => "the requirements file",
        _ if output.starts_with(real_path(sources)) && is_module(&output) => {
            "a module of the script"
        }
        _ => return None,
    };
    Some(format!("the output would replace {replaced}"))
}

/// Returns the reason why an output cannot be written, as far as a check that writes nothing can find it.
fn unwritable(folder: &ItemPath, file: Option<&str>) -> Option<String> {
    if folder.is_url() {
        return None;
    }
    let folder = folder.as_path();
    let (existing, metadata) = match nearest_existing(folder) {
        Ok(found) => found,
        Err((path, error)) => return Some(format!("{} cannot be used: {error}", path.display())),
    };
    if !metadata.is_dir() {
        return Some(format!("{} is a file, and no folder can be made there", existing.display()));
    }
    if let Some(mount) = missing_mount(folder) {
        return Some(format!(
            "nothing is mounted at {}, as /etc/fstab says there should be",
            mount.display()
        ));
    }
    if let Err(error) = access(&existing, Access::WRITE_OK | Access::EXEC_OK) {
        return Some(format!("{} cannot be written to: {error}", existing.display()));
    }
    // Some file systems report no number of free files.
    if let Ok(disk) = statvfs(&existing)
        && (disk.f_blocks > 0 && disk.f_bavail.saturating_mul(disk.f_frsize) < ROOM_BYTES_MIN
            || disk.f_files > 0 && disk.f_favail == 0)
    {
        return Some(format!(
            "the disk of {} is full: it has less than 1 MiB free, or no free file",
            existing.display()
        ));
    }
    let file = folder.join(file?);
    match file.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            Some(format!("{} is a folder, where the output file goes", file.display()))
        }
        Ok(metadata) if metadata.permissions().readonly() => Some(format!(
            "{} exists and is read-only; remove it, or choose another name",
            file.display()
        )),
        Ok(_) => access(&file, Access::WRITE_OK)
            .err()
            .map(|error| format!("{} cannot be replaced: {error}", file.display())),
        Err(_) => None,
    }
}

fn nearest_existing(
    folder: &Path,
) -> Result<(PathBuf, std::fs::Metadata), (PathBuf, std::io::Error)> {
    for path in folder.ancestors() {
        match path.metadata() {
            Ok(metadata) => return Ok((path.to_owned(), metadata)),
            Err(error)
                if error.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => {}
            // The path leads through a file.
            Err(error) if error.kind() == ErrorKind::NotADirectory => {}
            Err(error) => return Err((path.to_owned(), error)),
        }
    }
    Err((folder.to_owned(), ErrorKind::NotFound.into()))
}

/// Returns a mount point above `folder` that `/etc/fstab` names and at which nothing is mounted.
fn missing_mount(folder: &Path) -> Option<PathBuf> {
    let table = std::fs::read_to_string("/etc/fstab").ok()?;
    let mounted = std::fs::read_to_string("/proc/self/mounts").ok()?;
    unmounted(folder, &table, &mounted)
}

fn unmounted(folder: &Path, table: &str, mounted: &str) -> Option<PathBuf> {
    let points = |text: &str| -> Vec<PathBuf> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let points = lines.filter_map(|line| line.split_whitespace().nth(1));
        points.map(|point| point.replace("\\040", " ").into()).collect()
    };
    let is_above =
        |point: &Path| point.is_absolute() && point != Path::new("/") && folder.starts_with(point);
    let mounted = points(mounted);
    points(table).into_iter().find(|point| is_above(point) && !mounted.contains(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_mount_is_found() {
        let table = "# disks\nUUID=1 / ext4 defaults 0 1\nUUID=2 /mnt/my\\040data ext4 defaults 0 2\nUUID=3 none swap sw 0 0\n";
        let mounted = "/dev/sda1 / ext4 rw 0 0\nproc /proc proc rw 0 0\n";
        let missing = |folder: &str, mounted: &str| unmounted(Path::new(folder), table, mounted);
        assert_eq!(
            missing("/mnt/my data/out", mounted).as_deref(),
            Some(Path::new("/mnt/my data"))
        );
        assert_eq!(
            missing(
                "/mnt/my data/out",
                &format!("{mounted}/dev/sdb1 /mnt/my\\040data ext4 rw 0 0\n")
            ),
            None
        );
        assert_eq!(missing("/home/me/out", mounted), None);
    }
}
