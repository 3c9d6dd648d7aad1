//! `gristmill target quota`: shows or changes the quotas of a target and its owners.

use anyhow::{Context, Result, ensure};
use protocol::{LABEL_ALLOWED, OwnerQuota, Quotas, WhenFull, is_label};

use crate::{Exit, Settings, TargetFlags};

pub const QUOTA_EXAMPLES: &str = "Examples:
  gristmill target quota --target prod                                 show the quotas
  gristmill target quota --target prod --max-jobs 20                   of all owners together
  gristmill target quota --target prod --each-owner --max-jobs 3       of each owner; --max-in-flight 64
  gristmill target quota --target prod --owner ana --max-jobs 5        of one owner, instead of those of each
  gristmill target quota --target prod --owner ana --remove            those of each again
  gristmill target quota --target prod --when-full refuse              reject jobs instead of letting them wait";

#[derive(Debug, clap::Args)]
pub struct QuotaArguments {
    /// Jobs that run at a time; `any`: no limit.
    #[arg(long, value_name = "NUMBER", value_parser = limit, conflicts_with = "remove", allow_negative_numbers = true)]
    max_jobs: Option<Limit>,
    /// Mini-batches of an owner that run at a time, on all workers together; `any`: no limit.
    #[arg(
        long, value_name = "NUMBER", value_parser = limit, conflicts_with = "remove", requires = "of_owner",
        allow_negative_numbers = true
    )]
    max_in_flight: Option<Limit>,
    /// Apply the limits to each owner without limits of its own.
    #[arg(long, group = "of_owner")]
    each_owner: bool,
    /// Apply the limits to this owner.
    #[arg(long, value_name = "NAME", value_parser = owner, group = "of_owner")]
    owner: Option<String>,
    /// Remove the limits of the owner.
    #[arg(long, requires = "owner")]
    remove: bool,
    /// Effect on a job above a limit: it waits, or is rejected.
    #[arg(long, value_name = "EFFECT", value_parser = ["wait", "refuse"])]
    when_full: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: TargetFlags,
}

/// A limit as given; `None`: any number.
type Limit = Option<u32>;

fn limit(text: &str) -> Result<Limit> {
    match text {
        "any" => Ok(None),
        text => text.parse().map(Some).context("must be a number, or `any`"),
    }
}

fn owner(text: &str) -> Result<String> {
    ensure!(is_label(text), "must be {LABEL_ALLOWED}");
    Ok(text.to_owned())
}

impl QuotaArguments {
    /// Applies the flags to the quotas.
    fn apply(&self, quotas: &mut Quotas) -> Result<()> {
        if let Some(max_jobs) = self.max_jobs {
            match &self.owner {
                Some(owner) => quotas.owners.entry(owner.clone()).or_default().max_jobs = max_jobs,
                None if self.each_owner => quotas.each_owner.max_jobs = max_jobs,
                None => quotas.max_jobs = max_jobs,
            }
        }
        if let Some(max_in_flight) = self.max_in_flight {
            let quota = match &self.owner {
                Some(owner) => quotas.owners.entry(owner.clone()).or_default(),
                None => &mut quotas.each_owner,
            };
            quota.max_in_flight = max_in_flight;
        }
        if let Some(owner) = self.owner.as_ref().filter(|_| self.remove) {
            ensure!(
                quotas.owners.remove(owner).is_some(),
                "owner {owner} has no limits of its own"
            );
        }
        match self.when_full.as_deref() {
            Some("refuse") => quotas.when_full = WhenFull::Refuse,
            Some(_) => quotas.when_full = WhenFull::Wait,
            None => {}
        }
        Ok(())
    }
}

pub async fn quota(arguments: &QuotaArguments, settings: &Settings) -> Result<Exit> {
    let store = arguments.target.require(None, settings)?.open_store().await?;
    let before = store.quotas().await?;
    let mut quotas = before.clone().unwrap_or_default();
    arguments.apply(&mut quotas)?;
    if quotas != before.unwrap_or_default() {
        store.create()?;
        store.put_quotas(&quotas).await?;
    }
    match arguments.json {
        true => {
            say!(out, "{}", serde_json::to_string(&quotas).expect("plain data always serialises"))
        }
        false => say!(out, "{}", shown(&quotas)),
    }
    Ok(Exit::Done)
}

fn shown(quotas: &Quotas) -> String {
    let Quotas { max_jobs, when_full, each_owner, owners } = quotas;
    let number = |limit: Limit| limit.map_or_else(|| "any".to_owned(), |limit| limit.to_string());
    let row = |name: &str, max_jobs: String, max_in_flight: String| {
        format!("{name:<20}  {max_jobs:>8}  {max_in_flight:>13}")
    };
    let of = |name: &str, OwnerQuota { max_jobs, max_in_flight }: OwnerQuota| {
        row(name, number(max_jobs), number(max_in_flight))
    };
    let mut lines = vec![row("OWNER", "MAX-JOBS".to_owned(), "MAX-IN-FLIGHT".to_owned())];
    lines.push(row("(all together)", number(*max_jobs), "-".to_owned()));
    lines.push(of("(each)", *each_owner));
    lines.extend(owners.iter().map(|(owner, quota)| of(owner, *quota)));
    let effect = match when_full {
        WhenFull::Wait => "waits",
        WhenFull::Refuse => "is rejected",
    };
    lines.push(format!("a job above a limit {effect}"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Given {
        #[command(flatten)]
        arguments: QuotaArguments,
    }

    fn changed(quotas: &mut Quotas, flags: &str) {
        let given = Given::try_parse_from(["quota"].into_iter().chain(flags.split_whitespace()));
        given
            .unwrap_or_else(|error| panic!("{error}"))
            .arguments
            .apply(quotas)
            .expect("it has an effect");
    }

    #[test]
    fn flags_change_one_limit_each() {
        let mut quotas = Quotas::default();
        for flags in [
            "--max-jobs 20",
            "--each-owner --max-jobs 3 --max-in-flight 64",
            "--owner ana --max-jobs 5 --when-full refuse",
        ] {
            changed(&mut quotas, flags);
        }
        let ana = ("ana".to_owned(), OwnerQuota { max_jobs: Some(5), max_in_flight: None });
        let (each_owner, owners) =
            (OwnerQuota { max_jobs: Some(3), max_in_flight: Some(64) }, [ana].into());
        assert_eq!(
            quotas,
            Quotas { max_jobs: Some(20), when_full: WhenFull::Refuse, each_owner, owners }
        );
        for flags in ["--max-jobs any", "--owner ana --remove", "--when-full wait"] {
            changed(&mut quotas, flags);
        }
        assert_eq!(quotas, Quotas { each_owner, ..Quotas::default() });
        changed(&mut quotas, "--owner bo --max-jobs any");
        assert_eq!(quotas.of("bo").max_jobs, None, "an exception from the limit of each");
        let unknown =
            Given::parse_from(["quota", "--owner", "cy", "--remove"]).arguments.apply(&mut quotas);
        assert_eq!(unknown.expect_err("of none").to_string(), "owner cy has no limits of its own");
    }

    #[test]
    fn invalid_flags_are_refused() {
        for flags in [
            "--max-jobs many",
            "--owner a,b --max-jobs 1",
            "--remove",
            "--max-in-flight 3",
            "--each-owner --owner a --max-jobs 1",
            "--when-full never",
            "--max-jobs -1",
        ] {
            assert!(
                Given::try_parse_from(["quota"].into_iter().chain(flags.split_whitespace()))
                    .is_err(),
                "{flags}"
            );
        }
    }
}
