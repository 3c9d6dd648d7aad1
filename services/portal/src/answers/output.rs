//! The first rows of the output, and its download.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::Context;
use axum::body::Body;
use axum::extract::Query;
use axum::response::Response;
use engine::JobStore;
use engine::first_rows::{FirstRows, first_parquet_rows, first_rows};
use futures::{StreamExt, stream};
use protocol::{ItemPath, OutputAction, OutputFormat};
use serde::{Deserialize, Serialize};

use super::logs::download;
use super::words::{format_word, output_path};
use crate::document::Document;
use crate::error::{Answer, Refusal};
use crate::watched::View;

const ROWS_DEFAULT: usize = 100;
const ROWS_MAX: usize = 1000;
const READ_BYTES_MAX: u64 = 8 << 20;
const PIECE_BYTES: u64 = 1 << 18;
/// Bytes that are read from a store at a time.
const FETCH_BYTES: u64 = 4 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct OutputQuery {
    rows: Option<usize>,
}

#[derive(Debug, Default, Serialize)]
pub struct Output {
    available: bool,
    reason: Option<String>,
    path: String,
    bytes: u64,
    format: &'static str,
    columns: Option<Vec<String>>,
    cells: Vec<Vec<Option<String>>>,
    truncated: bool,
    how_to_read: String,
}

pub async fn output(view: View, Query(query): Query<OutputQuery>) -> Document<Output> {
    Document(of(&view, &query).await)
}

pub async fn of(view: &View, query: &OutputQuery) -> Output {
    let spec = &view.snapshot.spec;
    let rows_max = query.rows.unwrap_or(ROWS_DEFAULT).clamp(1, ROWS_MAX);
    let format = spec.output.format;
    let path = written(view).map_or_else(|| output_path(spec), str::to_owned);
    let how_to_read = how_to_read(&path, format, spec.output.header);
    let whole = Output { path, format: format_word(format), how_to_read, ..Output::default() };
    let read = async {
        let file = opened(view).await?;
        let read = tokio::task::spawn_blocking(move || read(file, format, rows_max)).await?;
        Answer::Ok(read.context("it cannot be shown")?)
    };
    match read.await {
        Ok((bytes, FirstRows { columns, cells, is_all })) => {
            Output { available: true, bytes, columns, cells, truncated: !is_all, ..whole }
        }
        Err(refusal) => Output { reason: Some(refusal.to_string()), ..whole },
    }
}

/// Returns where the output of a job was written.
fn written(view: &View) -> Option<&str> {
    view.snapshot.status.result.as_ref()?.output.as_deref()
}

fn read(file: File, format: OutputFormat, rows_max: usize) -> anyhow::Result<(u64, FirstRows)> {
    let bytes = file.metadata()?.len();
    let rows = match format {
        OutputFormat::Parquet => first_parquet_rows(file, rows_max)?,
        _ => {
            let mut beginning = Vec::new();
            file.take(READ_BYTES_MAX).read_to_end(&mut beginning)?;
            first_rows(&beginning, bytes <= READ_BYTES_MAX, format, rows_max)
        }
    };
    Ok((bytes, rows))
}

/// Returns the path or URL of the file that was written.
fn written_file(view: &View) -> Result<&str, Refusal> {
    let Some(path) = written(view) else {
        return Err(Refusal::not_found("the job has not written its output"));
    };
    if view.snapshot.spec.output.action == OutputAction::SummaryOnly {
        return Err(Refusal::not_found(
            "the script writes its own files (output_action: summary_only); open the folder",
        ));
    }
    Ok(path)
}

/// Opens the output. One in a store is copied to a temporary file first, if it is small.
async fn opened(view: &View) -> Result<File, Refusal> {
    let path = written_file(view)?;
    if ItemPath::from(path).is_url() {
        return fetched(&view.snapshot.store, path).await;
    }
    let path = PathBuf::from(path);
    let shown = path.display().to_string();
    // Otherwise, a writer to a remote store could name any file of this machine.
    if view.snapshot.store.folder().is_none() {
        return Err(Refusal::not_found(format!("{shown} is a file of another machine")));
    }
    let file = tokio::task::spawn_blocking(move || File::open(path)).await?;
    let file =
        file.map_err(|error| Refusal::not_found(format!("{shown} cannot be read: {error}")))?;
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        _ => Err(Refusal::not_found(format!("{shown} is not a file"))),
    }
}

/// The largest output in a store that is copied to be shown.
const FETCHED_BYTES_MAX: u64 = 64 << 20;

async fn fetched(store: &JobStore, url: &str) -> Result<File, Refusal> {
    let bytes = store.stores().size(url).await?;
    if bytes > FETCHED_BYTES_MAX {
        let most = engine::words::size(FETCHED_BYTES_MAX);
        return Err(Refusal::not_found(format!(
            "it is larger than {most}; download it to see its rows"
        )));
    }
    let bytes = if bytes > 0 {
        store.stores().read(url, None, 0..bytes).await?
    } else {
        bytes::Bytes::new()
    };
    let written = tokio::task::spawn_blocking(move || {
        let mut file = tempfile::tempfile()?;
        std::io::Write::write_all(&mut file, &bytes)?;
        std::io::Seek::rewind(&mut file)?;
        std::io::Result::Ok(file)
    });
    written.await?.map_err(|error| anyhow::Error::from(error).context("copy the output").into())
}

pub async fn raw(view: View) -> Answer<Response> {
    let path = written_file(&view)?.to_owned();
    let name = path.rsplit('/').next().unwrap_or("output").to_owned();
    if ItemPath::from(&*path).is_url() {
        let store = view.snapshot.store.clone();
        let bytes = store.stores().size(&path).await?;
        let pieces =
            stream::iter((0..bytes).step_by(FETCH_BYTES as usize)).then(move |start| {
                let (store, path) = (store.clone(), path.clone());
                async move {
                    store.stores().read(&path, None, start..bytes.min(start + FETCH_BYTES)).await
                }
            });
        return Ok(download(&name, Some(bytes), Body::from_stream(pieces)));
    }
    let file = opened(&view).await?;
    let bytes = file.metadata().ok().map(|metadata| metadata.len());
    // A file that grows meanwhile must not exceed the announced length.
    let file = file.take(bytes.unwrap_or(u64::MAX));
    let pieces = stream::try_unfold(file, |mut file| async {
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = Vec::with_capacity(PIECE_BYTES as usize);
            let read = file.by_ref().take(PIECE_BYTES).read_to_end(&mut piece)?;
            std::io::Result::Ok((read > 0).then(|| (bytes::Bytes::from(piece), file)))
        });
        read.await.map_err(std::io::Error::other)?
    });
    Ok(download(&name, bytes, Body::from_stream(pieces)))
}

fn how_to_read(path: &str, format: OutputFormat, header: bool) -> String {
    let path = serde_json::Value::from(path);
    match format {
        OutputFormat::Text if header => format!("pandas.read_csv({path}, sep=\" \")"),
        OutputFormat::Text => format!("open({path}).read().splitlines()"),
        OutputFormat::Csv => format!("pandas.read_csv({path})"),
        OutputFormat::Jsonl => format!("pandas.read_json({path}, lines=True)"),
        OutputFormat::Parquet => format!("pandas.read_parquet({path})"),
    }
}
