//! Paths as a job file writes them: relative to its folder, `~` for the home folder, URLs left as they are.

use std::path::{Component, Path, PathBuf};

use protocol::ItemPath;
use url::Url;

use crate::values::word;
use crate::{Fault, Node};

/// The rule for URLs: they become part of the job, which nodes, logs and reports show, so they must not hold a secret.
const KEPT: &str = "a URL without user, password, query and fragment, since anyone who sees the job can read it: give \
                    the nodes credentials for the store, or copy the object of a signed URL into one (in a name, `?` \
                    is %3F and `#` is %23)";

/// Schemes of the URLs that jobs read and write.
const SCHEMES: [&str; 11] =
    ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https", "file"];

/// The base of relative paths in a job file.
pub struct Paths {
    pub folder: PathBuf,
    /// The folder that `~` stands for.
    pub home: Option<PathBuf>,
    /// Paths that earlier steps of a pipeline make. They need not exist.
    pub made_earlier: Vec<PathBuf>,
}

impl Paths {
    pub fn new(folder: PathBuf, home: Option<PathBuf>) -> Self {
        Self { folder, home, made_earlier: Vec::new() }
    }

    /// Returns the absolute path. Symbolic links are kept, except for those in front of a `..`.
    pub fn resolve(&self, text: &str) -> PathBuf {
        let path = match (&self.home, text.strip_prefix('~')) {
            (Some(home), Some("")) => home.clone(),
            (Some(home), Some(rest)) if rest.starts_with('/') => {
                home.join(rest.trim_start_matches('/'))
            }
            _ => self.folder.join(text),
        };
        clean(&path)
    }

    pub fn path_or_url(&self, node: &Node) -> Result<ItemPath, Fault> {
        let text = word(node)?;
        if !is_url(&text) {
            not_a_misspelt_url(&text, node)?;
            return Ok(ItemPath::from(self.resolve(&text)));
        }
        match not_kept(&text) {
            Some(found) => Err(Fault::of(found, KEPT)),
            None => Ok(ItemPath::from(lower_case_scheme(&text).as_str())),
        }
    }

    /// Returns a local path, which need not exist.
    pub fn local(&self, node: &Node) -> Result<PathBuf, Fault> {
        let text = word(node)?;
        if is_url(&text) {
            return Err(Fault::new(node, "a local path"));
        }
        not_a_misspelt_url(&text, node)?;
        Ok(self.resolve(&text))
    }

    /// Accepts a local path that exists or that an earlier step makes, and every URL.
    pub fn exists(&self, node: &Node, path: ItemPath) -> Result<ItemPath, Fault> {
        let local = path.as_path();
        if path.is_url() || self.made_earlier.iter().any(|made| local.starts_with(made)) {
            return Ok(path);
        }
        match local.metadata() {
            Ok(_) => Ok(path),
            Err(error) => {
                Err(Fault::new(node, "a path that exists").saying(unusable(local, &error)))
            }
        }
    }
}

pub fn unusable(path: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => format!("{} does not exist", path.display()),
        _ => format!("{} cannot be read: {error}", path.display()),
    }
}

/// Removes `.` and `..` from an absolute path.
pub fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if let Ok(real) = cleaned.canonicalize() {
                    cleaned = real;
                }
                cleaned.pop();
            }
            component => cleaned.push(component),
        }
    }
    cleaned
}

/// Returns `path` relative to `folder`, even if one of them is written through a symbolic link.
pub fn below(folder: &Path, path: &Path) -> Option<PathBuf> {
    let relative = match path.strip_prefix(folder) {
        Ok(relative) => relative.to_owned(),
        Err(_) => {
            path.canonicalize().ok()?.strip_prefix(folder.canonicalize().ok()?).ok()?.to_owned()
        }
    };
    (!relative.as_os_str().is_empty()).then_some(relative)
}

/// Returns whether a text is a URL (`s3://…`) rather than a local path.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme
                .chars()
                .all(|character| character.is_ascii_alphanumeric() || "+-.".contains(character))
    })
}

/// Returns a URL with its scheme in lower case: `s3://` for `S3://`.
fn lower_case_scheme(url: &str) -> String {
    url.split_once("://").map_or_else(
        || url.to_owned(),
        |(scheme, rest)| format!("{}://{rest}", scheme.to_lowercase()),
    )
}

/// Rejects a misspelt URL (`s3:/bucket`, `http//host`), which would name a folder of this machine.
fn not_a_misspelt_url(text: &str, node: &Node) -> Result<(), Fault> {
    let Some(meant) = meant_url(text) else { return Ok(()) };
    if let Some(found) = not_kept(&meant) {
        return Err(Fault::of(found, KEPT));
    }
    let allowed = format!("a URL with `://`, or a path; a folder of this name is written ./{text}");
    Err(Fault::new(node, allowed).saying(format!("this is not a URL; did you mean {meant:?}?")))
}

/// Returns the URL that the user probably meant, if a text begins with the scheme of a URL but is not one.
fn meant_url(text: &str) -> Option<String> {
    let scheme_end = text.find(|character: char| !character.is_ascii_alphanumeric())?;
    let (scheme, rest) = text.split_at(scheme_end);
    let scheme = SCHEMES.iter().find(|known| known.eq_ignore_ascii_case(scheme))?;
    if !rest.starts_with(':') && !rest.starts_with("//") {
        return None;
    }
    let name = rest.trim_start_matches([':', '/', '\\']);
    // Only URLs of files have no host.
    let root = if *scheme == "file" { "/" } else { "" };
    Some(format!("{scheme}://{root}{name}"))
}

/// Returns the path of a `file://` URL, and any other path or URL as it is.
pub fn without_file_scheme(path: ItemPath) -> ItemPath {
    let url = path.is_url().then(|| Url::parse(&path.display()).ok()).flatten();
    let local = url.filter(|url| url.scheme() == "file").and_then(|url| url.to_file_path().ok());
    local.map_or(path, |local| ItemPath::from(clean(&local)))
}

/// Describes the part of a URL that a job may not keep, because it may be a secret. The description does not repeat it.
pub fn not_kept(text: &str) -> Option<&'static str> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    // A URL that cannot be parsed may hold a secret as well.
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_web = text.get(..4).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http"));
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    match user {
        // URLs of Azure have a file system in the place of the user: abfss://container@account.dfs.core.windows.net/.
        Some(user) if is_web || user.contains(':') => Some("a URL with a user or password"),
        _ if rest.contains('?') => Some("a URL with a query"),
        _ if rest.contains('#') => Some("a URL with a fragment"),
        _ => None,
    }
}

/// Returns the folder before the first wildcard, if there is a wildcard and no file has this exact name.
pub fn glob_folder(path: &Path) -> Option<PathBuf> {
    let is_wild = |component: &Component<'_>| {
        component.as_os_str().to_string_lossy().contains(['*', '?', '[', '{'])
    };
    match path.components().any(|component| is_wild(&component)) && path.symlink_metadata().is_err()
    {
        true => Some(path.components().take_while(|component| !is_wild(component)).collect()),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_url_gets_a_suggestion() {
        for (text, meant) in [
            ("s3:/bucket/x", "s3://bucket/x"),
            ("s3:bucket/x", "s3://bucket/x"),
            ("S3:/bucket", "s3://bucket"),
            ("s3//bucket/x", "s3://bucket/x"),
            ("s3:\\\\bucket", "s3://bucket"),
            ("http//host/a.csv", "http://host/a.csv"),
            ("https:://host", "https://host"),
            ("file:/data", "file:///data"),
        ] {
            assert_eq!(meant_url(text).as_deref(), Some(meant), "{text}");
        }
        for text in [
            "./s3:/x",
            "s3/x",
            "s3",
            "files/x",
            "az-output",
            "data//x",
            "azureml:x",
            "data:x",
            "/s3:/x",
            "é:/x",
        ] {
            assert_eq!(meant_url(text), None, "{text}");
        }
    }

    #[test]
    fn url_with_secret_is_rejected_and_not_repeated() {
        for text in [
            "https://host/a.csv?X-Amz-Signature=s3cr3t",
            "https://user:s3cr3t@host/a.csv",
            "https://s3cr3t@host/a.csv",
            "HTTPS://s3cr3t@host/a.csv",
            "https://user:s3cr3t@ho st/a.csv",
            "az://account/container/a.csv?sv=2024&sig=s3cr3t",
            "s3://key:s3cr3t@bucket/a.csv",
            "s3://bucket/a.csv#s3cr3t",
        ] {
            let found = not_kept(text).expect(text);
            assert!(!found.contains("s3cr3t"), "{found}");
        }
        for text in [
            "s3://bucket/a@b:c.csv",
            "s3://bucket/*.csv",
            "abfss://container@account.dfs.core.windows.net/a.csv",
            "https://host:8443/a@b.csv",
            "file:///data/a%3Fb.csv",
        ] {
            assert_eq!(not_kept(text), None, "{text}");
        }
    }
}
