//! `completions` and `man`.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::{Failure, Outcome, code, print};

/// The part of the manual page that is not generated from the options.
const MORE: &str = include_str!("manual.roff");

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fencelock", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(code::DONE)
}

pub(crate) fn man() -> Outcome {
    let page = page().map_err(|error| Failure::internal("making the manual page", error))?;
    print(&String::from_utf8_lossy(&page))?;
    Ok(code::DONE)
}

/// The manual page: the command, then a section for each subcommand.
fn page() -> io::Result<Vec<u8>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let whole = Man::new(command.clone());
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    whole.render_description_section(&mut page)?;
    whole.render_options_section(&mut page)?;
    for subcommand in command.get_subcommands() {
        let mut part = Vec::new();
        let man = Man::new(subcommand.clone());
        man.render_synopsis_section(&mut part)?;
        man.render_description_section(&mut part)?;
        man.render_options_section(&mut part)?;
        let part = String::from_utf8_lossy(&part).replace(".SH ", ".SS ");
        page.extend(
            format!(
                ".SH \"FENCELOCK {}\"\n",
                subcommand.get_name().to_uppercase()
            )
            .bytes(),
        );
        page.extend(part.bytes());
    }
    page.extend(MORE.bytes());
    Ok(page)
}
