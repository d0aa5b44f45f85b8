//! What a server costs: processor time and memory of its process, from /proc. Nothing is known of
//! a server on another machine or of another user's, and then nothing is said.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::Path;

/// A server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u32);

/// Kibibytes of resident memory, by what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Everything but shared memory, which is where the pool lies.
    pub own_kib: u64,
    pub shared_kib: u64,
}

impl Process {
    /// Whoever listens at this port of this machine, where we may see it.
    pub fn listening_at(port: u16) -> Option<Process> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let mut tables = tables.into_iter().flatten();
        let inode = tables.find_map(|table| listener_inode(&table, port))?;
        let link = format!("socket:[{inode}]");
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        processes.find(|pid: &u32| holds(*pid, &link)).map(Process)
    }

    pub fn is_alive(self) -> bool {
        Path::new("/proc").join(self.0.to_string()).exists()
    }

    /// Nanoseconds on a processor so far, over all of its threads and its children's.
    pub fn cpu_nanos(self) -> Option<u64> {
        let mut total = 0;
        let mut pids = vec![self.0];
        while let Some(pid) = pids.pop() {
            for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
                let task = entry.path();
                // Threads end while they are counted.
                let spent = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
                total +=
                    spent.split_whitespace().next().map_or(0, |nanos| nanos.parse().unwrap_or(0));
                let children = fs::read_to_string(task.join("children")).unwrap_or_default();
                pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
        Some(total)
    }

    pub fn memory(self) -> Option<Memory> {
        memory_of(&fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?)
    }
}

/// Nanoseconds that this program has been on a processor, in the kernel included.
pub fn own_cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Processor time at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    server: Option<u64>,
    own: u64,
}

impl Usage {
    pub fn now(process: Option<Process>) -> Usage {
        Usage { server: process.and_then(Process::cpu_nanos), own: own_cpu_nanos() }
    }

    /// Microseconds per piece of work since then: the server's, and ours. None of no work.
    pub fn per(self, process: Option<Process>, pieces: u64) -> (Option<f64>, Option<f64>) {
        if pieces == 0 {
            return (None, None);
        }
        let now = Usage::now(process);
        let each = |nanos: u64| nanos as f64 / 1e3 / pieces as f64;
        let server = now.server.zip(self.server).map(|(now, then)| each(now.saturating_sub(then)));
        (server, Some(each(now.own - self.own)))
    }
}

/// The socket that listens at a port. Columns: slot, local address, remote address, state, two
/// queues, timer, retransmits, user, timeout, inode.
fn listener_inode(table: &str, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let local = columns.get(1)?.rsplit_once(':')?.1;
        let listens = *columns.get(3)? == "0A" && u16::from_str_radix(local, 16) == Ok(port);
        if listens { columns.get(9)?.parse().ok() } else { None }
    })
}

fn holds(pid: u32, link: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link))
}

fn memory_of(status: &str) -> Option<Memory> {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let own_kib = kib("RssAnon:")? + kib("RssFile:")?;
    Some(Memory { own_kib, shared_kib: kib("RssShmem:")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_process_that_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let port = listener.local_addr().expect("it is bound").port();
        assert_eq!(Process::listening_at(port), Some(Process(std::process::id())));
        drop(listener);
        assert_eq!(Process::listening_at(port), None);
    }

    #[test]
    fn work_shows_in_processor_time_of_server_and_generator() {
        let this = Process(std::process::id());
        let before = Usage::now(Some(this));
        let mut sum = 0_u64;
        while own_cpu_nanos() < before.own + 2_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        let (_, own) = before.per(Some(this), 1);
        assert!(own >= Some(2000.0), "{own:?}");
        assert!(this.cpu_nanos() > Some(0) && this.is_alive());
        assert_eq!(before.per(None, 1).0, None, "nothing is said of a process that is not known");
        assert_eq!(before.per(Some(this), 0), (None, None), "nor of no work");
    }

    #[test]
    fn memory_is_split_into_the_pool_and_the_rest() {
        let status = "VmRSS:\t10 kB\nRssAnon:\t 7 kB\nRssFile:\t 2 kB\nRssShmem:\t 1 kB\n";
        assert_eq!(memory_of(status), Some(Memory { own_kib: 9, shared_kib: 1 }));
        assert_eq!(memory_of("VmRSS:\t10 kB\n"), None);
    }

    #[test]
    fn only_a_listener_counts() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n";
        let row = |state| {
            format!("{head}   0: 0100007F:1538 00000000:0000 {state} 0:0 0:0 0 0 0 4711 1\n")
        };
        assert_eq!(listener_inode(&row("0A"), 0x1538), Some(4711));
        assert_eq!(listener_inode(&row("01"), 0x1538), None);
        assert_eq!(listener_inode(&row("0A"), 80), None);
    }
}
