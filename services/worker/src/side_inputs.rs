//! Reference data by URL: downloads it once into a cache of this machine, so that scripts get local paths.
//!
//! The name of a copy depends on its URL and the versions of all its objects, which a job looks up when it starts on
//! this machine. So a changed object is downloaded again for the next job, and a copy never changes during a job.

use anyhow::{Result, anyhow};
use protocol::{ItemPath, JobSpec};
use storage::Stores;

use crate::cache::{Cache, EntryKind, PinnedEntry};

/// Option that the engine passes to the script; its value is never replaced.
const OUTPUT_OPTION: &str = "--output";

/// Downloads every side input that is a URL into `cache`, and replaces the URLs in the job by the
/// paths of the copies. The copies stay while the returned values exist.
pub async fn fetch_side_inputs(
    spec: &mut JobSpec,
    stores: &Stores,
    cache: &Cache,
) -> Result<Vec<PinnedEntry>> {
    let (mut copies, mut all) = (Vec::new(), Vec::new());
    for (name, original) in spec.side_inputs.iter().filter(|(_, original)| original.is_url()) {
        let url = lossless(original)?;
        let (copy, used) = copy_of(&url, stores, cache).await.map_err(|error| match error.downcast_ref() {
            Some(storage::Error::NotFound { object }) => anyhow!(
                "side input {name} cannot be downloaded: {object} does not exist; upload it, or correct \
                 side_inputs.{name}, and start the job again"
            ),
            _ => error.context(format!(
                "side input {name} cannot be downloaded (correct the cause, or side_inputs.{name}, and start the job again)"
            )),
        })?;
        copies.push((name.clone(), copy));
        all.push(used);
    }
    place(spec, copies)?;
    Ok(all)
}

async fn copy_of(url: &str, stores: &Stores, cache: &Cache) -> Result<(ItemPath, PinnedEntry)> {
    let tree = stores.tree(url).await?;
    let to = cache.content(EntryKind::SideInput, tree.digest()).join(tree.name());
    let download = async {
        tracing::info!("downloading {url}: {} bytes", tree.bytes());
        Ok(tree.download(&to).await?)
    };
    let used = cache.get(EntryKind::SideInput, tree.digest(), tree.bytes(), download).await?;
    Ok((used.path().join(tree.name()).into(), used))
}

/// Replaces every mention of a side input by the path of its copy.
pub(crate) fn place(spec: &mut JobSpec, copies: Vec<(String, ItemPath)>) -> Result<()> {
    let mut moved: Vec<(String, String)> = Vec::new();
    for (name, copy) in copies {
        if let Some(original) = spec.side_inputs.insert(name, copy.clone()) {
            // A folder may be mentioned with or without a slash at its end.
            moved.push((lossless(&original)?.trim_end_matches('/').to_owned(), lossless(&copy)?));
        }
    }
    // Longest first, because one may contain another.
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
    String::from_utf8(path.as_bytes().to_vec())
        .map_err(|_| anyhow!("{} is not valid UTF-8", path.display()))
}

/// Replaces each path in a text that equals, or lies below, the first path of a pair. The first matching pair applies.
pub fn replace_paths(text: &str, moved: &[(String, String)]) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    'text: while !rest.is_empty() {
        let is_start =
            replaced.is_empty() || !text[..text.len() - rest.len()].ends_with(is_path_character);
        for (original, copy) in
            moved.iter().filter(|(original, _)| is_start && !original.is_empty())
        {
            let Some(behind) = rest.strip_prefix(original.as_str()) else { continue };
            if behind.is_empty()
                || behind.starts_with('/')
                || !behind.starts_with(is_path_character)
            {
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

/// Returns whether a character beside a path makes it a different path.
fn is_path_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | '/' | '~')
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;
    use crate::cache::Limits;

    #[test]
    fn only_whole_paths_are_replaced() {
        let moved = [("/data/ref/model", "/cache/b"), ("/data/ref", "/cache/a")];
        let moved: Vec<_> =
            moved.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect();
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
            argv: [
                "--ref",
                "s3://bucket/ref/",
                "--one=s3://bucket/ref/a.txt",
                "--output",
                "s3://bucket/ref/out",
            ]
            .map(str::to_owned)
            .into(),
            side_inputs: [
                ("all".to_owned(), "s3://bucket/ref/".into()),
                ("local".to_owned(), "/data".into()),
            ]
            .into(),
            environment_variables: [("REF".to_owned(), "s3://bucket/ref".to_owned())].into(),
            ..crate::node::tests::spec("job")
        }
    }

    #[tokio::test]
    async fn url_is_downloaded_once_and_again_after_a_change() {
        let memory = Arc::new(InMemory::new());
        let put = async |content: &str| {
            let put = memory.put(&"ref/a.txt".into(), content.to_owned().into()).await;
            put.expect("memory is always there");
        };
        put("one").await;
        let stores = Stores::default();
        stores.stand_in(&"s3://bucket".parse().expect("a URL"), memory.clone());
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(folder.path().to_owned(), Limits::default());
        let fetched = async || {
            let mut spec = spec();
            fetch_side_inputs(&mut spec, &stores, &cache).await.expect("it exists");
            spec
        };
        let (first, second) = tokio::join!(fetched(), fetched());
        assert_eq!(first, second);
        assert_eq!(first.side_inputs["local"], "/data".into());
        let copy = first.side_inputs["all"].display();
        assert!(
            copy.starts_with(folder.path().to_str().expect("text")) && copy.ends_with("/ref"),
            "{copy}"
        );
        let argv = [
            "--ref",
            &format!("{copy}/"),
            &format!("--one={copy}/a.txt"),
            "--output",
            "s3://bucket/ref/out",
        ];
        assert_eq!(first.argv, argv);
        assert_eq!(first.environment_variables["REF"], copy);
        let content = |spec: &JobSpec| {
            std::fs::read_to_string(spec.side_inputs["all"].as_path().join("a.txt"))
                .expect("a file")
        };
        assert_eq!(content(&first), "one");

        put("two").await;
        let third = fetched().await;
        assert_eq!((content(&first), content(&third)), ("one".to_owned(), "two".to_owned()));
        let left = std::fs::read_dir(folder.path().join("side-inputs")).expect("a folder");
        assert_eq!(left.count(), 4, "two copies with their locks, and nothing else");
    }

    #[tokio::test]
    async fn missing_object_is_reported_in_one_line() {
        let stores = Stores::default();
        stores.stand_in(&"s3://bucket".parse().expect("a URL"), Arc::new(InMemory::new()));
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(folder.path().to_owned(), Limits::default());
        let error =
            fetch_side_inputs(&mut spec(), &stores, &cache).await.expect_err("it does not exist");
        assert_eq!(
            format!("{error:#}"),
            "side input all cannot be downloaded: s3://bucket/ref/ does not exist; upload it, or correct \
             side_inputs.all, and start the job again"
        );
    }
}
