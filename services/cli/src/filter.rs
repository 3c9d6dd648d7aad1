//! The flags of `jobs` and `clean` that select jobs.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use engine::{Selection, State};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Filter {
    /// Only jobs in this state, or in one of several: `failed,canceled`.
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', ignore_case = true, value_parser = state())]
    pub states: Vec<State>,
    /// Only jobs with this name; `*` matches any characters, for example `score-*`.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

fn state() -> impl TypedValueParser<Value = State> {
    PossibleValuesParser::new(State::ALL.map(State::word)).map(|word| {
        let named = State::ALL.into_iter().find(|state| state.word().eq_ignore_ascii_case(&word));
        named.expect("clap accepts these words only")
    })
}

impl Filter {
    pub fn selection(&self) -> Selection {
        Selection { states: self.states.clone(), name: self.name.clone() }
    }
}
