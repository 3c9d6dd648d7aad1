//! Reference data by URL: fetched once into a cache of this machine, so that scripts get paths.
//!
//! A copy is named by its URL and the versions of all objects behind it. A job looks what is there when it begins here,
//! so an object that has changed is fetched anew for the next job, and never changes under a running one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use protocol::{ItemPath, JobSpec};
use storage::{Stores, disk};
use tokio::sync::Mutex;

/// Options of the script that the engine sets, and whose values nothing replaces.
const OUTPUT_OPTION: &str = "--output";

/// One download of a thing at a time: who comes second finds it made.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<Mutex<()>>>>);

impl Turns {
    pub(crate) async fn of(&self, digest: &str) -> Arc<Mutex<()>> {
        self.0.lock().await.entry(digest.to_owned()).or_default().clone()
    }
}

/// Fetches every side input that is a URL into `cache`, and gives the job the paths of the copies, wherever it says
/// the URL.
pub async fn fetch_side_inputs(spec: &mut JobSpec, stores: &Stores, cache: &Path) -> Result<()> {
    fetch(spec, stores, cache, &Turns::default(), &std::process::id().to_string()).await
}

/// `by` tells apart who shares the cache.
pub(crate) async fn fetch(spec: &mut JobSpec, stores: &Stores, cache: &Path, turns: &Turns, by: &str) -> Result<()> {
    let mut copies = Vec::new();
    for (name, original) in spec.side_inputs.iter().filter(|(_, original)| original.is_url()) {
        let url = lossless(original)?;
        let copy = copy_of(&url, stores, cache, turns, by).await.map_err(|error| match error.downcast_ref() {
            Some(storage::Error::NotFound { object }) => anyhow!(
                "side input {name} cannot be downloaded: {object} does not exist; put it there, or mend \
                 side_inputs.{name}, and start the job again"
            ),
            _ => error.context(format!(
                "side input {name} cannot be downloaded (mend the cause, or side_inputs.{name}, and start the job again)"
            )),
        })?;
        copies.push((name.clone(), copy.into()));
    }
    place(spec, copies)
}

async fn copy_of(url: &str, stores: &Stores, cache: &Path, turns: &Turns, by: &str) -> Result<PathBuf> {
    let tree = stores.tree(url).await?;
    let folder = cache.join(tree.digest());
    let copy = folder.join(tree.name());
    let turn = turns.of(tree.digest()).await;
    let _turn = turn.lock().await;
    if folder.is_dir() {
        return Ok(copy);
    }
    let partial = cache.join(format!("{}.{by}.partial", tree.digest()));
    // What an earlier attempt has left.
    let _ = std::fs::remove_dir_all(&partial);
    tracing::info!("downloading {url}: {} bytes", tree.bytes());
    let fetched = match tree.download(&partial.join(tree.name())).await {
        Ok(()) => keep(partial.clone(), folder.clone()).await,
        Err(error) => Err(error.into()),
    };
    if fetched.is_err() {
        let _ = std::fs::remove_dir_all(&partial);
    }
    match fetched {
        // Another process of this machine was faster.
        Err(_) if folder.is_dir() => Ok(copy),
        fetched => fetched.map(|()| copy),
    }
}

/// Once it is there it is believed, after a power cut too.
async fn keep(partial: PathBuf, folder: PathBuf) -> Result<()> {
    let kept = tokio::task::spawn_blocking(move || {
        disk::sync_file_system(&partial).with_context(|| format!("write {} to disk", partial.display()))?;
        std::fs::rename(&partial, &folder).with_context(|| format!("make {}", folder.display()))
    });
    kept.await.context("keep a side input")?
}

/// Every mention of a side input becomes the path of its copy here.
pub(crate) fn place(spec: &mut JobSpec, copies: Vec<(String, ItemPath)>) -> Result<()> {
    let mut moved: Vec<(String, String)> = Vec::new();
    for (name, copy) in copies {
        if let Some(original) = spec.side_inputs.insert(name, copy.clone()) {
            // What lies in a folder may be named with or without another slash.
            moved.push((lossless(&original)?.trim_end_matches('/').to_owned(), lossless(&copy)?));
        }
    }
    // Longest first: one may lie in another.
    moved.sort_by_key(|(original, _)| std::cmp::Reverse(original.len()));
    let mut is_output = false;
    for argument in &mut spec.argv {
        if !std::mem::replace(&mut is_output, argument == OUTPUT_OPTION) {
            *argument = replace_paths(argument, &moved);
        }
    }
    for value in spec.environment_variables.values_mut() {
        *value = replace_paths(value, &moved);
    }
    Ok(())
}

fn lossless(path: &ItemPath) -> Result<String> {
    String::from_utf8(path.as_bytes().to_vec()).map_err(|_| anyhow!("{} is not valid UTF-8", path.display()))
}

/// Replaces whole paths, and paths of what lies in them.
fn replace_paths(text: &str, moved: &[(String, String)]) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    'text: while !rest.is_empty() {
        let is_start = replaced.is_empty() || !text[..text.len() - rest.len()].ends_with(is_path_character);
        for (original, copy) in moved.iter().filter(|(original, _)| is_start && !original.is_empty()) {
            let Some(behind) = rest.strip_prefix(original.as_str()) else { continue };
            if behind.is_empty() || behind.starts_with('/') || !behind.starts_with(is_path_character) {
                replaced.push_str(copy);
                rest = behind;
                continue 'text;
            }
        }
        let length = rest.chars().next().map_or(0, char::len_utf8);
        replaced.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    replaced
}

/// Whether a character beside a path makes it another path.
fn is_path_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | '/' | '~')
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn whole_paths_are_replaced_and_nothing_that_only_looks_alike() {
        let moved = [("/data/ref/model", "/cache/b"), ("/data/ref", "/cache/a")];
        let moved: Vec<_> = moved.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect();
        for (text, expected) in [
            ("/data/ref", "/cache/a"),
            ("/data/ref/model", "/cache/b"),
            ("/data/ref/models", "/cache/a/models"),
            ("--dir=/data/ref/x:/data/ref", "--dir=/cache/a/x:/cache/a"),
            ("/data/reference", "/data/reference"),
            ("/data/ref.bak", "/data/ref.bak"),
            ("/old/data/ref", "/old/data/ref"),
            ("größe=/data/ref ü", "größe=/cache/a ü"),
            ("", ""),
        ] {
            assert_eq!(replace_paths(text, &moved), expected, "{text}");
        }
    }

    fn spec() -> JobSpec {
        JobSpec {
            argv: ["--ref", "s3://bucket/ref/", "--one=s3://bucket/ref/a.txt", "--output", "s3://bucket/ref/out"]
                .map(str::to_owned)
                .into(),
            side_inputs: [("all".to_owned(), "s3://bucket/ref/".into()), ("local".to_owned(), "/data".into())].into(),
            environment_variables: [("REF".to_owned(), "s3://bucket/ref".to_owned())].into(),
            ..crate::node::tests::spec("job")
        }
    }

    #[tokio::test]
    async fn a_url_is_fetched_once_for_all_jobs_and_again_when_it_has_changed() {
        let memory = Arc::new(InMemory::new());
        let put = async |content: &str| {
            let put = memory.put(&"ref/a.txt".into(), content.to_owned().into()).await;
            put.expect("memory is always there");
        };
        put("one").await;
        let stores = Stores::default();
        stores.stand_in(&"s3://bucket".parse().expect("a URL"), memory.clone());
        let cache = tempfile::tempdir().expect("a folder");
        let turns = Turns::default();
        let fetched = async || {
            let mut spec = spec();
            fetch(&mut spec, &stores, cache.path(), &turns, "node").await.expect("it is there");
            spec
        };
        let (first, second) = tokio::join!(fetched(), fetched());
        assert_eq!(first, second);
        assert_eq!(first.side_inputs["local"], "/data".into());
        let copy = first.side_inputs["all"].display();
        assert!(copy.starts_with(cache.path().to_str().expect("text")) && copy.ends_with("/ref"), "{copy}");
        let argv = ["--ref", &format!("{copy}/"), &format!("--one={copy}/a.txt"), "--output", "s3://bucket/ref/out"];
        assert_eq!(first.argv, argv);
        assert_eq!(first.environment_variables["REF"], copy);
        let content =
            |spec: &JobSpec| std::fs::read_to_string(spec.side_inputs["all"].as_path().join("a.txt")).expect("a file");
        assert_eq!(content(&first), "one");

        put("two").await;
        let third = fetched().await;
        assert_eq!((content(&first), content(&third)), ("one".to_owned(), "two".to_owned()));
        assert_eq!(std::fs::read_dir(cache.path()).expect("a folder").count(), 2, "nothing else is left");
    }

    #[tokio::test]
    async fn what_is_not_there_is_told_in_one_line() {
        let stores = Stores::default();
        stores.stand_in(&"s3://bucket".parse().expect("a URL"), Arc::new(InMemory::new()));
        let cache = tempfile::tempdir().expect("a folder");
        let error = fetch_side_inputs(&mut spec(), &stores, cache.path()).await.expect_err("it is not there");
        assert_eq!(
            format!("{error:#}"),
            "side input all cannot be downloaded: s3://bucket/ref/ does not exist; put it there, or mend \
             side_inputs.all, and start the job again"
        );
    }
}
