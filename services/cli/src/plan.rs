//! `gristmill plan` and `gristmill validate`: what would happen, without it happening.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use protocol::{Descriptor, JobSpec};
use storage::StoreOptions;

use crate::cost::CostArguments;
use crate::run::{INVALID, check_columns, load};
use crate::settings::Settings;

/// Mini-batches shown unless all are asked for.
const SHOWN: u64 = 20;

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub struct PlanArguments {
    /// The job file.
    job_file: PathBuf,
    /// Replace a setting of the job file, for example `mini_batch_size=20`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Show every mini-batch, not only the first ones.
    #[arg(long)]
    all: bool,
    /// Print every mini-batch as one JSON object a line, and the totals last.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cost: CostArguments,
}

/// Shows what the mini-batches would be.
pub fn plan(arguments: &PlanArguments, settings: &Settings) -> Result<ExitCode> {
    let parsed = match load(&arguments.job_file, &arguments.set, None, settings)? {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    if let Err(status) = check_columns(&parsed, &StoreOptions::default()) {
        return Ok(status);
    }
    let mut plan = partitioner::plan(&parsed.spec);
    // A closed pipe (`| head`) ends the command, and is no error.
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut shown = 0;
    let mut descriptor_bytes = 0;
    for descriptor in &mut plan {
        let descriptor = match descriptor {
            Ok(descriptor) => descriptor,
            Err(error) => {
                out.flush()?;
                say!(err, "{error}");
                return Ok(ExitCode::from(INVALID));
            }
        };
        let written = if arguments.cost.cost {
            descriptor_bytes += serde_json::to_vec(&descriptor).map_or(0, |text| text.len() as u64);
            Ok(())
        } else if arguments.json {
            serde_json::to_writer(&mut out, &descriptor).map_err(Into::into).and_then(|()| out.write_all(b"\n"))
        } else if arguments.all || shown < SHOWN {
            shown += 1;
            writeln!(out, "{:>8}  {}", descriptor.mini_batch, describe(&descriptor))
        } else {
            Ok(())
        };
        if written.is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let totals = plan.totals();
    let cost = arguments.cost.of(&parsed.spec, &totals, descriptor_bytes);
    if arguments.cost.cost && arguments.json {
        let _ = writeln!(out, "{}", cost.json()).and_then(|()| out.flush());
        return Ok(ExitCode::SUCCESS);
    }
    let _ = if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&totals).expect("totals always serialise"))
    } else {
        if totals.mini_batches > shown && !arguments.cost.cost {
            let _ = writeln!(out, "          … and {} more (--all shows them)", totals.mini_batches - shown);
        }
        let items = totals.items.map_or(String::new(), |items| format!(", {items} items"));
        writeln!(out, "{} mini-batches of {} files{items}", totals.mini_batches, totals.files)
    };
    if arguments.cost.cost {
        for line in cost.lines() {
            let _ = writeln!(out, "{line}");
        }
    }
    let _ = out.flush();
    Ok(ExitCode::SUCCESS)
}

fn describe(descriptor: &Descriptor) -> String {
    let key: Vec<String> = descriptor.key().iter().map(|(name, value)| format!("{name}={value}")).collect();
    if key.is_empty() { descriptor.detail() } else { format!("{}  {}", key.join(" "), descriptor.detail()) }
}

/// Checks a job file, and the syntax of its entry script.
pub fn validate(job_file: &Path, set: &[String], settings: &Settings) -> Result<ExitCode> {
    let parsed = match load(job_file, set, None, settings)? {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    if let Some(problem) = script_problem(&parsed.spec)? {
        say!(err, "{problem}");
        return Ok(ExitCode::from(INVALID));
    }
    say!(out, "{} is valid", job_file.display());
    Ok(ExitCode::SUCCESS)
}

/// Parses the script with the interpreter that would run it, without running it.
fn script_problem(spec: &JobSpec) -> Result<Option<String>> {
    const CHECK: &str = "import ast, sys\n\
        path = sys.argv[1]\n\
        try:\n    tree = ast.parse(open(path, 'rb').read(), path)\n\
        except SyntaxError as error:\n    sys.exit(f'{path}:{error.lineno}: {error.msg}')\n\
        names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}\n\
        names |= {name.asname or name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}\n\
        names |= {t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)}\n\
        if not names & {'run', '*'}:\n    sys.exit(f'{path}: it defines no run(mini_batch)')\n";
    let python = match &spec.environment {
        // Only a node knows its interpreter.
        protocol::Environment::Node => return Ok(None),
        protocol::Environment::Interpreter { path } => path,
        protocol::Environment::Requirements { base, .. } => base,
    };
    let script = spec.source_directory.as_path().join(&spec.entry_script);
    let output = Command::new(python.as_path())
        .args(["-I", "-c", CHECK])
        .arg(&script)
        .output()
        .with_context(|| format!("start {}", python.display()))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((!output.status.success()).then_some(said))
}
