//! The `keylane` binary: parse, report, run, end with one of the documented exit codes.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use keylane::cli::{self, Command, Environment, Parsed, Verbosity};
use keylane::driver::signals::Source;
use keylane::exit::Exit;
use keylane::handler::child;
use keylane::pool::role::{self, Surroundings};
use keylane::report::{self, Report};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives large buffers back to the system when they are freed.
///
/// glibc raises the size from which it does that with every large buffer that is freed, up to 32 MiB, and then keeps
/// what is freed: a pool then held twice its `--max-memory`. Setting the size once switches that off. musl has no such
/// thing to switch.
fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const M_MMAP_THRESHOLD: i32 = -3;
        const LARGE_BYTES: i32 = 256 << 10;
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        // SAFETY: mallopt takes two integers and is called before there is another thread.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
        }
    }
}

fn main() -> ExitCode {
    return_large_buffers();
    let words: Vec<OsString> = std::env::args_os().collect();
    let exit = match cli::parse(&words, &Environment::of_process()) {
        Ok(Parsed::Run(command)) => {
            let output = command.output();
            let report = Report::new(output.format, output.verbosity);
            if let Some(common) = command.common() {
                report.start(common);
            }
            if let Command::Pool(pool) = &*command {
                report.memory(&pool.max_memory);
            }
            run(*command, &report)
        }
        Ok(Parsed::Answer(text)) => answer(&text),
        Err(usage) => {
            Report::new(cli::wanted_format(&words), Verbosity::Normal).error(usage);
            Exit::Usage
        }
    };
    exit.into()
}

/// A reader that has seen enough (`keylane --help | head -1`) is no error.
fn answer(text: &str) -> Exit {
    match report::to_stdout(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Exit::Output,
        _ => Exit::Done,
    }
}

fn run(command: Command, report: &Report) -> Exit {
    let ended = match command {
        Command::Pool(pool) => role::pool(&pool, &Surroundings::of_process(report)),
        Command::Sequential(sequential) => role::sequential(&sequential, &Surroundings::of_process(report)),
        Command::Lag(lag) => Ok(keylane::lag::run(&lag, report, &Source::Process)),
        Command::Topic(topic) => Ok(keylane::topic::run(&topic, report)),
        Command::Group(group) => Ok(keylane::group::run(&group, report)),
        Command::Dlq(_) | Command::Verify(_) => Err(io::Error::other("not built yet")),
        Command::Seed(seed) => Ok(keylane::seed::run(&seed, report, &Source::Process)),
        #[cfg(feature = "broker")]
        Command::Broker(broker) => keylane::broker::role::run(&broker, report),
        #[cfg(feature = "broker")]
        Command::Demo(demo) => keylane::demo::run(&demo, report),
    };
    // A worker that does not come back from its output still has its child.
    child::end_all();
    ended.unwrap_or_else(|error| {
        report.error(format!("the system refuses what keylane needs: {error}"));
        Exit::Bug
    })
}
