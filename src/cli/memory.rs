//! How much memory there is, for the default of `--max-memory`.
//!
//! The smaller of 64 MiB and an eighth of what the cgroup or the machine has. The only file of the command line that
//! reads the machine; what cannot be read counts as not there.

use std::path::Path;

/// The default where there is plenty.
const PLENTY_BYTES: u64 = 64 << 20;

/// `--max-memory`, and why it is that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that records may hold.
    pub bytes: u64,
    /// Where the figure is from, to be printed at start.
    pub reason: String,
}

impl MemoryLimit {
    /// The default on this machine.
    pub(super) fn default_here() -> Self {
        let machine = read("/proc/meminfo").as_deref().and_then(machine_bytes);
        Self::of(cgroup_bytes(), machine)
    }

    fn of(cgroup: Option<u64>, machine: Option<u64>) -> Self {
        let known = [("the cgroup", cgroup), ("the machine", machine)];
        let least = known.into_iter().filter_map(|(whose, bytes)| Some((bytes?, whose))).min();
        match least {
            Some((bytes, whose)) if bytes / 8 < PLENTY_BYTES => {
                MemoryLimit { bytes: bytes / 8, reason: format!("an eighth of the {bytes} bytes of {whose}") }
            }
            _ => MemoryLimit { bytes: PLENTY_BYTES, reason: "the default".to_owned() },
        }
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The tightest limit of this process's cgroup and its ancestors: version 2, else version 1.
fn cgroup_bytes() -> Option<u64> {
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let mut least = None;
    for (root, path, file) in cgroup_places(&own) {
        // A container often sees its own group mounted as the root, so the path may lead nowhere; its ancestors do.
        for group in Path::new(&path).ancestors() {
            let relative = group.strip_prefix("/").unwrap_or(group);
            let limit = read(Path::new(root).join(relative).join(file)).as_deref().and_then(limit_bytes);
            least = [least, limit].into_iter().flatten().min();
        }
    }
    least
}

/// Root, path and file of the memory groups that `/proc/self/cgroup` names.
fn cgroup_places(own: &str) -> Vec<(&'static str, String, &'static str)> {
    let mut places = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if controllers.is_empty() {
            places.push(("/sys/fs/cgroup", path.to_owned(), "memory.max"));
        } else if controllers.split(',').any(|name| name == "memory") {
            places.push(("/sys/fs/cgroup/memory", path.to_owned(), "memory.limit_in_bytes"));
        }
    }
    places
}

/// The number in `memory.max`, which says `max` for none; version 1 says a number near 2^63.
fn limit_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
}

/// `MemTotal` of `/proc/meminfo`, which counts in KiB.
fn machine_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_counts() {
        let limit = |cgroup, machine| MemoryLimit::of(cgroup, machine).bytes;
        assert_eq!(limit(None, None), 64 << 20);
        assert_eq!(limit(None, Some(8 << 30)), 64 << 20);
        assert_eq!(limit(None, Some(256 << 20)), 32 << 20);
        assert_eq!(limit(Some(128 << 20), Some(8 << 30)), 16 << 20);
        assert_eq!(limit(Some(8 << 30), Some(256 << 20)), 32 << 20);
        let reason = MemoryLimit::of(Some(128 << 20), None).reason;
        assert_eq!(reason, "an eighth of the 134217728 bytes of the cgroup");
    }

    #[test]
    fn what_the_kernel_writes() {
        assert_eq!(limit_bytes("max\n"), None);
        assert_eq!(limit_bytes("268435456\n"), Some(256 << 20));
        assert_eq!(limit_bytes("9223372036854771712\n"), None);
        assert_eq!(machine_bytes("MemTotal:        2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(machine_bytes("MemFree: 1 kB\n"), None);
        let v1 = "12:cpu,memory:/docker/x\n1:name=systemd:/\n";
        assert_eq!(
            cgroup_places(v1),
            [("/sys/fs/cgroup/memory", "/docker/x".to_owned(), "memory.limit_in_bytes")]
        );
        assert_eq!(
            cgroup_places("0::/user.slice\n"),
            [("/sys/fs/cgroup", "/user.slice".to_owned(), "memory.max")]
        );
    }

    #[test]
    fn this_machine_has_some_memory() {
        assert!(MemoryLimit::default_here().bytes > 0);
    }
}
