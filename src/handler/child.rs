//! Child processes: how a program is found, started, signalled and reaped.
//!
//! A child is started the `posix_spawn` way, so that the size of keylane costs nothing, in a process group of its own,
//! with an empty signal mask and SIGPIPE as the system has it. What else was ignored when keylane began stays ignored
//! (`nohup`). Its descriptors are those it is given: each of ours is closed by the exec.
//!
//! Guarantees: a group is signalled only while its leader is not reaped, so that no number is met that meanwhile
//! belongs to somebody else. A [`Child`] that is dropped is killed with its group and reaped: no zombie is left.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};
use nix::spawn::{self, PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, WaitOptions, pidfd_open, waitid, waitpid};
use signal_hook::consts::SIGCHLD;

use super::bell::Bell;
use super::outcome::{End, Failed, Kind, reason};
use crate::driver::signals;
use crate::exit::Exit;

/// Where the shells look without a `PATH`.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The descriptor on which a child finds the record's headers: the first one that is free, and one digit, since some
/// shells read no other.
pub const HEADERS_FD: i32 = 3;

/// A program that was found, and its arguments as they were typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: CString,
    words: Vec<CString>,
}

impl Program {
    /// Looks the first word up, as a shell does.
    ///
    /// # Errors
    /// It is not there (127), or cannot be run (126), and why.
    pub fn find(words: &[OsString]) -> Result<Program, (Exit, String)> {
        Program::find_in(words, std::env::var_os("PATH").as_deref())
    }

    fn find_in(words: &[OsString], path: Option<&OsStr>) -> Result<Program, (Exit, String)> {
        let Some(first) = words.first().filter(|first| !first.is_empty()) else {
            return Err((Exit::NotFound, "the command is empty".to_owned()));
        };
        let name = first.to_string_lossy();
        let found = if first.as_bytes().contains(&b'/') {
            look(Path::new(first))
        } else {
            look_in(first, path.unwrap_or(OsStr::new(PATH_DEFAULT)))
        };
        let found = found.map_err(|errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR => (Exit::NotFound, format!("{name}: command not found")),
            errno => (Exit::CannotRun, format!("{name}: cannot be run: {}", errno.desc())),
        })?;
        // No word of a command line holds a NUL; one of a caller in the program might.
        let c_string = |word: &OsStr| {
            CString::new(word.as_bytes()).map_err(|_| (Exit::CannotRun, format!("{name}: NUL in a word")))
        };
        let words = words.iter().map(|word| c_string(word)).collect::<Result<_, _>>()?;
        Ok(Program { path: c_string(found.as_os_str())?, words })
    }

    /// The arguments as they were typed, the program's name first.
    pub fn words(&self) -> &[CString] {
        &self.words
    }
}

fn look_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, Errno> {
    let mut error = Errno::ENOENT;
    for directory in std::env::split_paths(path) {
        // An empty entry is the working directory.
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
        match look(&directory.join(name)) {
            Ok(found) => return Ok(found),
            Err(Errno::EACCES | Errno::EISDIR) => error = Errno::EACCES,
            Err(_) => {}
        }
    }
    Err(error)
}

fn look(path: &Path) -> Result<PathBuf, Errno> {
    access(path, AccessFlags::F_OK)?;
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        return Err(Errno::EISDIR);
    }
    access(path, AccessFlags::X_OK)?;
    Ok(path.to_owned())
}

/// The descriptors that a child is given. None of them is below 3, but as its own number.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'fd> {
    /// 0.
    pub stdin: BorrowedFd<'fd>,
    /// 1.
    pub stdout: BorrowedFd<'fd>,
    /// 2.
    pub stderr: BorrowedFd<'fd>,
    /// [`HEADERS_FD`].
    pub headers: Option<BorrowedFd<'fd>>,
}

/// A running child, or one that ended and is not reaped.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    /// Readable once the child has ended: a pidfd, or a bell that a thread rings.
    ended: Ended,
    is_reaped: bool,
}

#[derive(Debug)]
enum Ended {
    Pidfd(OwnedFd),
    Bell(Arc<Bell>),
}

impl Child {
    /// Starts a program. `words` are all its arguments, its name first; `environment` is all that it gets.
    ///
    /// # Errors
    /// The system's; [`spawn_failed`] says what it means for the record.
    pub fn spawn(
        program: &Program,
        words: &[impl AsRef<CStr>],
        environment: &[impl AsRef<CStr>],
        descriptors: &Descriptors<'_>,
    ) -> io::Result<Child> {
        let mut actions = PosixSpawnFileActions::init()?;
        let Descriptors { stdin, stdout, stderr, headers } = descriptors;
        for (source, target) in [(stdin, 0), (stdout, 1), (stderr, 2)] {
            actions.add_dup2(source.as_raw_fd(), target)?;
        }
        if let Some(headers) = headers {
            // The last: what had this number until now has been copied to where it is wanted.
            actions.add_dup2(headers.as_raw_fd(), HEADERS_FD)?;
        }
        let pid = spawn::posix_spawn(program.path.as_c_str(), &actions, &attributes()?, words, environment)?;
        lock_running().insert(pid.as_raw());
        match ended(pid) {
            Ok(ended) => Ok(Child { pid, ended, is_reaped: false }),
            Err(error) => {
                kill(pid);
                Err(error)
            }
        }
    }

    /// Its process id, which is that of its group.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Sends a signal to its group: to what it has started as well, and to that even where the child itself has ended.
    pub fn signal_group(&self, signal: Signal) {
        assert!(!self.is_reaped, "a group is signalled while its leader keeps the number");
        // It fails when nobody is left there that may be signalled.
        let _ = killpg(self.pid, signal);
    }

    /// Reaps it, if it has ended, and says how.
    ///
    /// # Errors
    /// Somebody else has reaped it.
    pub fn try_wait(&mut self) -> io::Result<Option<End>> {
        self.reap(WaitOptions::NOHANG)
    }

    /// Waits for its end, reaps it and says how it ended.
    ///
    /// # Errors
    /// Somebody else has reaped it.
    pub fn wait(&mut self) -> io::Result<End> {
        loop {
            if let Some(end) = self.reap(WaitOptions::empty())? {
                return Ok(end);
            }
        }
    }

    fn reap(&mut self, options: WaitOptions) -> io::Result<Option<End>> {
        // From here on its number can become somebody else's.
        lock_running().remove(&self.pid());
        // nix knows no real-time signals, and would lose the end by one.
        let reaped = retry_on_intr(|| waitpid(Some(rustix_pid(self.pid)), options));
        // Somebody else has done it, or so we are told: in any case the number is not ours any more.
        self.is_reaped = reaped.is_err();
        let Some((_, status)) = reaped? else {
            lock_running().insert(self.pid());
            return Ok(None);
        };
        let end = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => End::Exit(code),
            (_, Some(signal)) => End::Signal(signal),
            // Neither stopped nor continued ones are asked for.
            _ => return Ok(None),
        };
        self.is_reaped = true;
        Ok(Some(end))
    }
}

/// Readable once the child has ended.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.ended {
            Ended::Pidfd(fd) => fd.as_fd(),
            Ended::Bell(bell) => bell.as_fd(),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped {
            kill(self.pid);
        }
    }
}

/// Kills the group of a child that is not reaped, and reaps it.
fn kill(pid: Pid) {
    let _ = killpg(pid, Signal::SIGKILL);
    lock_running().remove(&pid.as_raw());
    let _ = retry_on_intr(|| waitpid(Some(rustix_pid(pid)), WaitOptions::empty()));
}

fn attributes() -> io::Result<PosixSpawnAttr> {
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETPGROUP
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK,
    )?;
    attributes.set_pgroup(Pid::from_raw(0))?;
    static DEFAULTS: OnceLock<SigSet> = OnceLock::new();
    attributes.set_sigdefault(DEFAULTS.get_or_init(signals_by_default))?;
    attributes.set_sigmask(&SigSet::empty())?;
    Ok(attributes)
}

/// Signals that are as the system has them in a child: SIGPIPE, which Rust's runtime ignores, and those that are not
/// ignored. The latter would be so by the exec, but glibc looks at each that is not named here before it sets it.
fn signals_by_default() -> SigSet {
    const REAL_TIME: u64 = !0 << 31;
    match signals::ignored() {
        Some(ignored) if ignored & REAL_TIME == 0 => {
            let mut set = SigSet::all();
            Signal::iterator()
                .filter(|signal| signals::is_among(ignored, *signal as i32) && *signal != Signal::SIGPIPE)
                .for_each(|signal| set.remove(signal));
            set
        }
        _ => SigSet::from(Signal::SIGPIPE),
    }
}

/// What becomes readable when the child ends.
fn ended(pid: Pid) -> io::Result<Ended> {
    match pidfd_open(rustix_pid(pid), PidfdFlags::empty()) {
        Ok(fd) => Ok(Ended::Pidfd(fd)),
        // Before Linux 5.3, and where a sandbox does not know it.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => watched(pid),
        Err(error) => Err(error.into()),
    }
}

fn rustix_pid(pid: Pid) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(pid.as_raw()).expect("a child's id is not 0")
}

/// A thread waits for the child in place of a descriptor.
fn watched(pid: Pid) -> io::Result<Ended> {
    let bell = Arc::new(Bell::new()?);
    let ring = bell.clone();
    thread::Builder::new().name("child".to_owned()).stack_size(64 << 10).spawn(move || {
        // It is left to be reaped by its owner, who may have done that already: then there is no such child.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = retry_on_intr(|| waitid(WaitId::Pid(rustix_pid(pid)), options));
        ring.ring();
    })?;
    Ok(Ended::Bell(bell))
}

/// Sees to it that the ends of children reach us: where whoever started keylane ignored SIGCHLD, the kernel reaps them.
/// A handler, unlike that, is not inherited by what we start.
///
/// # Errors
/// The system refuses the handler.
pub fn keep_ends() -> io::Result<()> {
    if signals::ignored().is_some_and(|ignored| signals::is_among(ignored, SIGCHLD)) {
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
    }
    Ok(())
}

/// Sees to it that so many descriptors can be open, as far as the system lets us. Children inherit the limit, so it is
/// left as it is where it is enough.
pub fn make_room(descriptors: u64) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < descriptors {
        // Where that is not enough, starts of children fail for a while, and are tried again.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, descriptors.min(hard), hard);
    }
}

/// Kills the group of every child that is left: the process is about to end.
pub fn end_all() {
    for pid in lock_running().iter() {
        let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

/// Leaders of groups that are not being reaped.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn lock_running() -> MutexGuard<'static, BTreeSet<i32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What it means for a record that its child could not be started.
pub fn spawn_failed(error: &io::Error) -> Failed {
    let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
    let kind = match errno {
        // Another program writes the file (ETXTBSY): it will have finished soon.
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ETXTBSY => Kind::Temporary,
        Errno::ENOENT | Errno::ENOTDIR => Kind::CannotRun(Exit::NotFound),
        Errno::E2BIG => Kind::Reject,
        _ => Kind::CannotRun(Exit::CannotRun),
    };
    let reason = reason(format!("the command cannot be started: {error}"));
    Failed { kind, end: End::Answer, reason, counts: true }
}

/// Waits until one of `fds` is ready, a signal comes, or the time is over (`None` = no limit). Returns whether one is
/// ready: if not, none of them was looked at.
///
/// # Errors
/// The system's.
pub fn wait_for(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    // Rounded up, or the last part of a millisecond would be spent spinning.
    let limit_ms = limit.map(|limit| limit.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32);
    let timeout =
        limit_ms.map_or(PollTimeout::NONE, |ms| PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
    match poll(fds, timeout) {
        // What is ready is known all the same.
        Err(Errno::EINTR) => match poll(fds, PollTimeout::ZERO) {
            Err(Errno::EINTR) => Ok(false),
            polled => Ok(polled? > 0),
        },
        polled => Ok(polled? > 0),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use nix::poll::PollFlags;

    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn start(program: &Program, environment: &[CString], stdout: BorrowedFd<'_>) -> Child {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let descriptors =
            Descriptors { stdin: null.as_fd(), stdout, stderr: null.as_fd(), headers: Some(null.as_fd()) };
        Child::spawn(program, program.words(), environment, &descriptors).unwrap()
    }

    fn end(child: &mut Child) -> End {
        let mut fds = [PollFd::new(child.as_fd(), PollFlags::POLLIN)];
        assert!(wait_for(&mut fds, Some(Duration::from_secs(20))).unwrap(), "it ends");
        child.try_wait().unwrap().expect("ended")
    }

    fn output(script: &str) -> (String, End) {
        let (mut read, write) = io::pipe().unwrap();
        let program = Program::find(&words(&["sh", "-c", script])).unwrap();
        let mut child =
            start(&program, &[c"PATH=/usr/bin:/bin".to_owned(), c"A=b c".to_owned()], write.as_fd());
        drop(write);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        (text, end(&mut child))
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("first/tool")).unwrap();
        fs::create_dir_all(at("second")).unwrap();
        fs::write(at("first/plain"), "").unwrap();
        fs::write(at("second/tool"), "").unwrap();
        fs::set_permissions(at("second/tool"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::join_paths([at("first"), at("second")]).unwrap();
        let find = |name: &str| Program::find_in(&words(&[name, "-x", ""]), Some(&path));
        let tool = find("tool").unwrap();
        assert_eq!(tool.path.as_bytes(), at("second/tool").as_os_str().as_bytes());
        assert_eq!(tool.words, [c"tool".to_owned(), c"-x".to_owned(), c"".to_owned()]);
        let exit = |name: &str| find(name).unwrap_err().0;
        assert_eq!(exit("plain"), Exit::CannotRun);
        assert_eq!(exit("none"), Exit::NotFound);
        assert_eq!(exit(""), Exit::NotFound);
        assert_eq!(exit(&at("first").to_string_lossy()), Exit::CannotRun);
        assert_eq!(exit(&at("first/none").to_string_lossy()), Exit::NotFound);
        assert_eq!(exit(&at("first/plain/none").to_string_lossy()), Exit::NotFound);
        assert!(Program::find_in(&words(&["sh"]), None).is_ok());
    }

    #[test]
    fn a_child_has_what_it_is_given_and_no_more() {
        assert_eq!(output("echo \"$A\"; exit 7"), ("b c\n".to_owned(), End::Exit(7)));
        assert_eq!(output("kill -9 $$").1, End::Signal(9));
        assert_eq!(output("kill -40 $$").1, End::Signal(40), "a real-time one");
        // 0 to 3, and the one that lists them.
        let (listed, _) = output("exec ls /proc/self/fd");
        let inherited = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap().stdout;
        let inherited = String::from_utf8(inherited).unwrap();
        let count = |text: &str| text.split_whitespace().count();
        assert!((5..=count(&inherited) + 1).contains(&count(&listed)), "{listed} and {inherited}");
        let (status, _) = output("exec grep -E '^Sig(Blk|Ign)' /proc/self/status");
        let sigpipe = 1u64 << 12;
        for line in status.lines() {
            let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
            assert_eq!(mask & sigpipe, 0, "{line}");
            assert!(mask == 0 || line.starts_with("SigIgn"), "{line}");
        }
    }

    #[test]
    fn a_dropped_child_takes_its_group_along() {
        let (mut read, write) = io::pipe().unwrap();
        let program = Program::find(&words(&["sh", "-c", "sleep 100 & echo $!; wait"])).unwrap();
        let child = start(&program, &[c"PATH=/usr/bin:/bin".to_owned()], write.as_fd());
        drop(write);
        let mut first = [0; 1];
        read.read_exact(&mut first).unwrap();
        let pid = child.pid();
        drop(child);
        // The end of the pipe is the end of the sleeping grandchild.
        let mut rest = String::new();
        read.read_to_string(&mut rest).unwrap();
        let waited = waitpid(rustix::process::Pid::from_raw(pid), WaitOptions::empty());
        assert_eq!(waited.err(), Some(rustix::io::Errno::CHILD), "reaped");
    }

    #[test]
    fn without_a_pidfd_a_thread_watches() {
        let program = Program::find(&words(&["sh", "-c", "exit 3"])).unwrap();
        let null = File::options().write(true).open("/dev/null").unwrap();
        let mut child = start(&program, &[], null.as_fd());
        child.ended = watched(child.pid).unwrap();
        assert_eq!(end(&mut child), End::Exit(3));
    }

    #[test]
    fn what_a_failed_start_means() {
        let kind = |errno: Errno| spawn_failed(&io::Error::from(errno)).kind;
        assert_eq!(kind(Errno::EAGAIN), Kind::Temporary);
        assert_eq!(kind(Errno::E2BIG), Kind::Reject);
        assert_eq!(kind(Errno::ENOENT), Kind::CannotRun(Exit::NotFound));
        assert_eq!(kind(Errno::ENOEXEC), Kind::CannotRun(Exit::CannotRun));
    }
}
