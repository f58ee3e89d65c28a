//! `redquorum` on the command line: locks for scripts and people, on the public face of the library only.
//!
//! Here is the way in and the way out. Each command has a module, and knows nothing of the others.

mod args;
mod bench;
mod demo;
mod doctor;
mod exit;
mod nodes;
mod output;
mod places;
#[cfg(unix)]
mod run;
mod status;
mod table;
mod watch;
mod words;

use std::future::Future;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use exit::Failure;
use output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return told(&with_usage_of_help().try_get_matches().err().unwrap_or(error)),
    };
    let output = Output::new(cli.common.json, cli.common.color);
    log(cli.common.verbose);
    match dispatch(&cli, &output) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(cli: &Cli, output: &Output) -> Result<u8, Failure> {
    let common = &cli.common;
    match &cli.command {
        #[cfg(unix)]
        Command::Run(args) => run::run(common, args, output),
        #[cfg(unix)]
        Command::Guardian => run::guardian(),
        #[cfg(not(unix))]
        Command::Run(_) | Command::Guardian => {
            Err(Failure::system("`run` needs process groups, which this system does not have"))
        }
        Command::Status(args) => alone(status::status(common, args, output)),
        Command::Nodes => alone(nodes::nodes(common, output)),
        Command::Doctor(args) => alone(doctor::doctor(common, args, output)),
        Command::Bench(args) => together(bench::bench(common, args, output)),
        Command::Watch(args) => alone(watch::watch(common, args, output)),
        Command::Demo { real } => {
            let urls = if *real { places::Places::find(common)?.urls } else { Vec::new() };
            together(async { Ok(demo::play(&urls).await) })
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "redquorum", &mut text);
            output.raw(&text).map(|()| exit::OK)
        }
        Command::Man => manual(output).map(|()| exit::OK),
    }
}

/// Runs a command on this thread: for what waits far more than it works.
fn alone(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(command)
}

/// Runs a command with a thread for each core.
fn together(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(command)
}

/// The command line, where errors show a command's usage as its help does. Else whatever was given beside what is missing, in a
/// flag or in the environment, would look as if it were required.
fn with_usage_of_help() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    for sub in command.get_subcommands_mut() {
        // The title is one word.
        let usage = sub.render_usage().ansi().to_string();
        if let Some((_, usage)) = usage.split_once(' ') {
            *sub = std::mem::take(sub).override_usage(usage.to_owned());
        }
    }
    command
}

/// What the parser has to say: help, the version, or what is wrong with the call.
fn told(error: &clap::Error) -> ExitCode {
    let wrong = !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // A reader that has gone needs no help.
    let _ = error.print();
    ExitCode::from(if wrong { exit::USAGE } else { exit::OK })
}

/// The manual: the tool, and then each command.
fn manual(output: &Output) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let page = clap_mangen::Man::new(sub.clone());
        let name = sub.get_name().to_uppercase();
        text.extend(format!(".SH \"REDQUORUM {name}\"\n").bytes());
        page.render_synopsis_section(&mut text)?;
        page.render_description_section(&mut text)?;
        page.render_options_section(&mut text)?;
        page.render_extra_section(&mut text)?;
    }
    output.raw(&text)
}

/// Shows what the library says of itself, where that is asked for.
fn log(verbose: u8) {
    let asked = std::env::var("RUST_LOG").ok().filter(|asked| !asked.is_empty());
    let filter = match (verbose, asked) {
        (0, None) => return,
        (0, Some(asked)) => asked,
        (1, _) => "redquorum=info".to_owned(),
        (2, _) => "redquorum=debug".to_owned(),
        _ => "trace".to_owned(),
    };
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .try_init();
}
