//! A report of one job: the portal's answers about it, in one HTML file that needs no server.

use engine::MiniBatchState;
use engine::history::History;
use protocol::milliseconds_since_epoch;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::answers::{
    job, jobs, logs, map, mini_batch, nodes, output, rejects, series, table, timeline,
};
use crate::error::Answer;
use crate::watched::{View, WatchedJobs};
use crate::{Options, page};

const ROWS_MAX: usize = 500;
const FAILED_MAX: usize = 50;
/// The report may load no resource and send no request.
const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src \
                      'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">";

/// Returns the answers about a job, by their paths in the API, as one JSON object.
pub async fn report(options: &Options, job_id: &str) -> anyhow::Result<Value> {
    collect(options, job_id).await.map_err(|refusal| anyhow::anyhow!("{refusal}"))
}

async fn collect(options: &Options, job_id: &str) -> Answer<Value> {
    let watched = WatchedJobs::default();
    let view = watched.get(&options.jobs, job_id).await?;
    let mut answers = Answers { answers: Map::new(), job: format!("/jobs/{job_id}") };
    answers.answers.insert("/info".to_owned(), value(&jobs::describe(options)));
    answers.add("", &job::describe(&view, options).await?);
    answers.add("/series", &series::of(&view, &Default::default()).await?);
    for (by, query) in [
        (map::ColorBy::State, "state"),
        (map::ColorBy::Tries, "tries"),
        (map::ColorBy::Duration, "duration"),
    ] {
        let wanted = map::MapQuery { by, since: None };
        answers.add(&format!("/map?by={query}"), &map::of(&view, &wanted).await?);
    }
    for (sort, query) in [(table::Sort::State, "state"), (table::Sort::Duration, "duration")] {
        let wanted = table::TableQuery { sort, limit: Some(ROWS_MAX), ..Default::default() };
        answers.add(&format!("/mini-batches?sort={query}"), &table::of(&view, wanted).await?);
    }
    for number in view.compute(shown_alone).await? {
        answers.add(
            &format!("/mini-batches/{number}"),
            &mini_batch::of(&view, number, &options.flags()).await?,
        );
    }
    answers.add("/timeline", &timeline::of(&view, Default::default()).await?);
    answers.add("/nodes", &nodes::of(&view, &Default::default()).await?);
    answers.add("/logs", &logs::of(&view).await?);
    answers.add("/rejects", &rejects::of(&view).await?);
    answers.add("/output", &output::of(&view, &Default::default()).await);
    let answers = answers.answers;
    Ok(
        json!({ "report": 1, "generated_at": milliseconds_since_epoch(), "job_id": job_id, "answers": answers }),
    )
}

struct Answers {
    answers: Map<String, Value>,
    job: String,
}

impl Answers {
    fn add<T: Serialize>(&mut self, path: &str, answer: &T) {
        self.answers.insert(format!("{}{path}", self.job), value(answer));
    }
}

fn value<T: Serialize>(answer: &T) -> Value {
    serde_json::to_value(answer).unwrap_or_default()
}

/// Returns the mini-batches that have a page of their own: the first that failed, and the slowest.
fn shown_alone(view: &View, history: &History) -> Vec<u64> {
    let failed = (0..history.mini_batches())
        .filter(|number| history.state(*number) == MiniBatchState::Failed);
    let mut numbers: Vec<u64> = failed.take(FAILED_MAX).collect();
    let mut measured = view.measured();
    measured.update(history);
    numbers.extend(measured.slowest());
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Returns the page with a report in it, as one file.
pub fn html(report: &Value) -> String {
    let index = page::content("index.html").unwrap_or_default();
    let mut html = String::from_utf8_lossy(&index).into_owned();
    html = inlined(&html, "<link rel=\"stylesheet\" href=\"", "\">", |style| {
        format!("<style>{}</style>", style.replace("</style", "<\\/style"))
    });
    // No text of a job can end the element: JSON has other ways to write the character.
    let data = report.to_string().replace('<', "\\u003c");
    let data = format!("<script type=\"application/json\" id=\"report\">{data}</script>");
    let with_script = inlined(&html, "<script type=\"module\" src=\"", "\"></script>", |script| {
        let script = script.replace("</script", "<\\/script").replace("<!--", "\\x3c!--");
        format!("{data}<script type=\"module\">{script}</script>")
    });
    // A page without a script has the data at its end.
    html = if with_script == html {
        html.replacen("</body>", &format!("{data}</body>"), 1)
    } else {
        with_script
    };
    html.replacen("<head>", &format!("<head>{POLICY}"), 1)
}

/// Replaces an element that names a file of the page.
fn inlined(html: &str, before: &str, after: &str, element: impl FnOnce(&str) -> String) -> String {
    let found = html.find(before).and_then(|start| {
        let name_start = start + before.len();
        let name_end = name_start + html[name_start..].find(after)?;
        let content = page::content(html[name_start..name_end].trim_start_matches('/'))?;
        let element = element(&String::from_utf8_lossy(&content));
        Some(format!("{}{element}{}", &html[..start], &html[name_end + after.len()..]))
    });
    found.unwrap_or_else(|| html.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_job_cannot_end_the_data() {
        let report = json!({ "answers": { "/x": "</script><script>alert(1)</script><!--" } });
        let html = html(&report);
        assert!(!html.contains("alert(1)</script>"), "{html}");
        let start = html.find("id=\"report\">").expect("data") + "id=\"report\">".len();
        let end = start + html[start..].find("</script>").expect("its end");
        assert_eq!(serde_json::from_str::<Value>(&html[start..end]).expect("JSON"), report);
        assert!(html.contains("default-src 'none'"));
    }
}
