//! The requirements of a job, and the offer of a node.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::is_default;
use crate::wear::memory;
use crate::words::counted;

/// The requirements on each node of a job (`requires`). Zero: any number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirements {
    /// GPUs.
    #[serde(skip_serializing_if = "is_default")]
    pub gpus: u32,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "is_default")]
    pub memory: u64,
    /// Processors.
    #[serde(skip_serializing_if = "is_default")]
    pub processors: u32,
    /// Labels with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Requirements {
    /// Whether every node meets them.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether they concern the size of a machine, and not only labels.
    pub fn has_sizes(&self) -> bool {
        self.gpus > 0 || self.memory > 0 || self.processors > 0
    }

    /// Returns why none of these nodes meets the requirements. `None` if one does, or there is no node.
    pub fn unmet<'a>(
        &self,
        nodes: impl IntoIterator<Item = (&'a String, &'a Offer)>,
    ) -> Option<Unfit> {
        let mut nearest: Option<(usize, &String, String)> = None;
        let mut count = 0;
        for (name, offer) in nodes {
            let lacks = offer.lacking(self);
            if lacks.is_empty() {
                return None;
            }
            count += 1;
            if nearest.as_ref().is_none_or(|(fewest, ..)| lacks.len() < *fewest) {
                nearest = Some((lacks.len(), name, lacks.join("; ")));
            }
        }
        let (_, name, lacks) = nearest?;
        Some(Unfit { requires: self.clone(), nodes: count, nearest: name.clone(), lacks })
    }
}

/// `1 GPU, 16 GB of memory, label zone=a`
impl fmt::Display for Requirements {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpus, memory, processors, labels } = self;
        formatter.write_str(&parts(*gpus, *memory, *processors, labels).join(", "))
    }
}

/// No node of a target meets the requirements of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    /// The requirements of the job.
    pub requires: Requirements,
    /// Number of nodes.
    pub nodes: u64,
    /// The node that lacks the fewest things.
    pub nearest: String,
    /// The unmet requirements, in sentences with `;` between them.
    pub lacks: String,
}

/// `none of the 2 workers meets `requires` (1 GPU); a1 comes nearest: it has no GPU, the job requires 1`
impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requires, nodes, nearest, lacks } = self;
        match nodes {
            1 => write!(
                f,
                "the only worker, {nearest}, does not meet `requires` ({requires}): {lacks}"
            ),
            _ => {
                write!(
                    f,
                    "none of the {nodes} workers meets `requires` ({requires}); {nearest} comes nearest: {lacks}"
                )
            }
        }
    }
}

/// The offer of a node to jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Offer {
    /// GPUs.
    pub gpus: u32,
    /// Bytes of memory, of the machine or of the node's container.
    pub memory: u64,
    /// Processors.
    pub processors: u32,
    /// Labels with their values.
    pub labels: BTreeMap<String, String>,
}

impl Offer {
    /// Returns the unmet requirements of a job, in sentences with `;` between them; `None` if there
    /// are none.
    pub fn lacks(&self, requirements: &Requirements) -> Option<String> {
        let lacks = self.lacking(requirements);
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }

    fn lacking(&self, requirements: &Requirements) -> Vec<String> {
        let mut lacks = Vec::new();
        let mut add =
            |has: String, needs: String| lacks.push(format!("{has}, the job requires {needs}"));
        let Requirements { gpus, memory: bytes, processors, labels } = requirements;
        if self.gpus < *gpus {
            let has = match self.gpus {
                0 => "no GPU".to_owned(),
                gpus => counted(gpus.into(), "GPU"),
            };
            add(format!("it has {has}"), gpus.to_string());
        }
        if self.memory < *bytes {
            add(format!("it has {} of memory", memory(self.memory)), memory(*bytes));
        }
        if self.processors < *processors {
            add(
                format!("it has {}", counted(self.processors.into(), "processor")),
                processors.to_string(),
            );
        }
        for (name, value) in labels {
            match self.labels.get(name) {
                Some(own) if own == value => {}
                Some(own) => add(format!("its label {name} is {own}"), value.clone()),
                None => add(format!("it has no label {name}"), format!("{name}={value}")),
            }
        }
        lacks
    }
}

/// `8 processors, 32 GB of memory, 1 GPU, label zone=a`
impl fmt::Display for Offer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpus, memory, processors, labels } = self;
        formatter.write_str(&parts(*gpus, *memory, *processors, labels).join(", "))
    }
}

fn parts(gpus: u32, bytes: u64, processors: u32, labels: &BTreeMap<String, String>) -> Vec<String> {
    let mut parts = Vec::new();
    if gpus > 0 {
        parts.push(counted(gpus.into(), "GPU"));
    }
    if processors > 0 {
        parts.push(counted(processors.into(), "processor"));
    }
    if bytes > 0 {
        parts.push(format!("{} of memory", memory(bytes)));
    }
    parts.extend(labels.iter().map(|(name, value)| format!("label {name}={value}")));
    parts
}

/// Characters of the longest label.
pub const LABEL_LENGTH_MAX: usize = 63;
/// The names and values of labels, in words.
pub const LABEL_ALLOWED: &str = "1 to 63 letters, digits, `-`, `_`, `.` and `/`";

/// Whether a text may be the name or the value of a label.
pub fn is_label(text: &str) -> bool {
    let legal = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    (1..=LABEL_LENGTH_MAX).contains(&text.len()) && text.chars().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<String, String> {
        labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    fn offer() -> Offer {
        Offer {
            gpus: 1,
            memory: 16 << 30,
            processors: 8,
            labels: labels([("zone", "b"), ("disk", "ssd")]),
        }
    }

    #[test]
    fn node_takes_jobs_that_require_no_more_than_it_has() {
        let all = Requirements {
            gpus: 1,
            memory: 16 << 30,
            processors: 8,
            labels: labels([("zone", "b")]),
        };
        assert_eq!(offer().lacks(&all), None);
        assert_eq!(Offer::default().lacks(&Requirements::default()), None);
    }

    #[test]
    fn each_lack_is_named_with_both_sides() {
        let none = Requirements::default();
        for (requirements, expected) in [
            (Requirements { gpus: 2, ..none.clone() }, "it has 1 GPU, the job requires 2"),
            (
                Requirements { memory: 24 << 30, ..none.clone() },
                "it has 16 GB of memory, the job requires 24 GB",
            ),
            (
                Requirements { processors: 9, ..none.clone() },
                "it has 8 processors, the job requires 9",
            ),
            (
                Requirements { labels: labels([("zone", "a")]), ..none.clone() },
                "its label zone is b, the job requires a",
            ),
            (
                Requirements { gpus: 4, labels: labels([("gpu", "H200"), ("zone", "a")]), ..none },
                "it has 1 GPU, the job requires 4; it has no label gpu, the job requires gpu=H200; its label zone is b, \
                 the job requires a",
            ),
        ] {
            assert_eq!(offer().lacks(&requirements).as_deref(), Some(expected));
        }
        let one_gpu = Requirements { gpus: 1, ..Requirements::default() };
        assert_eq!(
            Offer::default().lacks(&one_gpu).as_deref(),
            Some("it has no GPU, the job requires 1")
        );
    }

    #[test]
    fn job_that_no_node_takes_names_the_nearest() {
        let requires =
            Requirements { gpus: 1, labels: labels([("zone", "a")]), ..Requirements::default() };
        let (far, near) = ("far".to_owned(), "near".to_owned());
        let (without, with) = (Offer::default(), offer());
        let unfit =
            requires.unmet([(&far, &without), (&near, &with)]).expect("neither is in zone a");
        assert_eq!((unfit.nodes, unfit.nearest.as_str()), (2, "near"));
        assert_eq!(unfit.lacks, "its label zone is b, the job requires a");
        let fits = Offer { labels: labels([("zone", "a")]), ..with };
        assert_eq!(requires.unmet([(&far, &without), (&near, &fits)]), None, "one node is enough");
        assert_eq!(requires.unmet([]), None, "nodes may still come");
    }

    #[test]
    fn requirements_and_offers_are_shown_in_words() {
        assert_eq!(
            offer().to_string(),
            "1 GPU, 8 processors, 16 GB of memory, label disk=ssd, label zone=b"
        );
        let requires =
            Requirements { gpus: 2, labels: labels([("zone", "a")]), ..Requirements::default() };
        assert_eq!(requires.to_string(), "2 GPUs, label zone=a");
        assert!(Requirements::default().is_empty() && !requires.is_empty());
    }

    #[test]
    fn labels_fit_commands_and_files() {
        for text in ["zone", "gpu_model", "a/b", "1.5-x", &"a".repeat(63)] {
            assert!(is_label(text), "{text}");
        }
        for text in ["", "a b", "ä", "a=b", "a,b", &"a".repeat(64)] {
            assert!(!is_label(text), "{text}");
        }
    }
}
