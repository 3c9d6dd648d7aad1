//! `gristmill completions`: the script of a shell that calls this command for completions; see `complete`.

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Zsh};

use crate::Exit;
use crate::complete::VARIABLE;

#[derive(Debug, clap::Args)]
pub struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// `. <(gristmill completions bash)` in ~/.bashrc
    Bash,
    /// `gristmill completions fish > ~/.config/fish/completions/gristmill.fish`
    Fish,
    /// `. <(gristmill completions zsh)` in ~/.zshrc, after compinit
    Zsh,
    /// `eval (gristmill completions elvish | slurp)` in ~/.config/elvish/rc.elv
    Elvish,
    /// `gristmill completions powershell | Out-String | Invoke-Expression` in $PROFILE
    Powershell,
}

pub fn completions(arguments: &CompletionsArguments) -> Result<Exit> {
    let name = "gristmill";
    let mut script = Vec::new();
    let shell: &dyn EnvCompleter = match arguments.shell {
        Shell::Bash => &Bash,
        Shell::Fish => &Fish,
        Shell::Zsh => &Zsh,
        Shell::Elvish => &Elvish,
        Shell::Powershell => &Powershell,
    };
    shell
        .write_registration(VARIABLE, name, name, name, &mut script)
        .context("write the script")?;
    if arguments.shell == Shell::Zsh {
        // Zsh reads a file of `fpath` as a function when it completes the command for the first time.
        script.extend_from_slice(
            b"[[ ${funcstack[1]} == _gristmill ]] && _clap_dynamic_completer_gristmill\n",
        );
    }
    crate::printed::bytes(&script);
    Ok(Exit::Done)
}
