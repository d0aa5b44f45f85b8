//! What a server costs: processor time and memory of its process, from /proc. Nothing is known of
//! a server on another machine or of another user's, and then nothing is said.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
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

    /// Nanoseconds that each of its threads and its children's has been on a processor.
    pub fn spent(self) -> Option<Spent> {
        spent_in(Path::new("/proc"), self.0)
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
#[derive(Clone, Debug)]
pub struct Usage {
    server: Option<Spent>,
    own: u64,
}

impl Usage {
    pub fn now(process: Option<Process>) -> Usage {
        Usage { server: process.and_then(Process::spent), own: own_cpu_nanos() }
    }

    /// Microseconds per piece of work since then: the server's, and ours. None of no work.
    pub fn per(&self, process: Option<Process>, pieces: u64) -> (Option<f64>, Option<f64>) {
        if pieces == 0 {
            return (None, None);
        }
        let now = Usage::now(process);
        let each = |nanos: u64| nanos as f64 / 1e3 / pieces as f64;
        let server = now.server.zip(self.server.as_ref());
        (server.map(|(now, then)| each(now.since(then))), Some(each(now.own - self.own)))
    }
}

/// Nanoseconds on a processor by thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent(BTreeMap<u32, u64>);

impl Spent {
    /// What was spent since then by threads that are there now. One that has ended keeps what it
    /// was known to have spent, so its end takes nothing off the others; a number that is less
    /// than it was belongs to a new thread.
    fn since(&self, then: &Spent) -> u64 {
        let each = self.0.iter().map(|(thread, now)| match then.0.get(thread) {
            Some(then) if then <= now => now - then,
            _ => *now,
        });
        each.sum()
    }
}

/// None where a thread is there and what it spent cannot be read: to count it as nothing would
/// flatter the server.
fn spent_in(proc: &Path, pid: u32) -> Option<Spent> {
    let mut spent = Spent::default();
    let mut pids = vec![pid];
    while let Some(pid) = pids.pop() {
        let tasks = match fs::read_dir(proc.join(pid.to_string()).join("task")) {
            Ok(tasks) => tasks,
            // A child that ended while it was looked for.
            Err(_) if !spent.0.is_empty() => continue,
            Err(_) => return None,
        };
        for task in tasks.flatten().map(|entry| entry.path()) {
            let thread = task.file_name()?.to_str()?.parse().ok()?;
            match fs::read_to_string(task.join("schedstat")) {
                Ok(text) => {
                    spent.0.insert(thread, text.split_whitespace().next()?.parse().ok()?);
                }
                // Threads end while they are counted.
                Err(_) if !task.exists() => continue,
                Err(_) => return None,
            }
            let children = fs::read_to_string(task.join("children")).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    Some(spent)
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
        let spent = this.spent().expect("it is our own");
        assert!(spent.since(&Spent::default()) > 0 && this.is_alive());
        assert_eq!(before.per(None, 1).0, None, "nothing is said of a process that is not known");
        assert_eq!(before.per(Some(this), 0), (None, None), "nor of no work");
    }

    #[test]
    fn a_thread_that_cannot_be_read_makes_the_figure_unknown() {
        let proc = std::env::temp_dir().join(format!("kvtide-proc-{}", std::process::id()));
        let task = |pid: u32, thread: u32| proc.join(format!("{pid}/task/{thread}"));
        for (pid, thread) in [(7, 7), (7, 8), (9, 9)] {
            fs::create_dir_all(task(pid, thread)).expect("the folder is ours");
        }
        fs::write(task(7, 7).join("schedstat"), "100 5 1\n").expect("it is ours");
        fs::write(task(7, 7).join("children"), "9 ").expect("it is ours");
        fs::write(task(9, 9).join("schedstat"), "30 5 1\n").expect("it is ours");
        assert_eq!(spent_in(&proc, 7), None, "thread 8 is there");
        fs::write(task(7, 8).join("schedstat"), "20 5 1\n").expect("it is ours");
        let all = Spent(BTreeMap::from([(7, 100), (8, 20), (9, 30)]));
        assert_eq!(spent_in(&proc, 7), Some(all));
        fs::remove_dir_all(task(7, 8)).expect("it is there");
        assert_eq!(spent_in(&proc, 7), Some(Spent(BTreeMap::from([(7, 100), (9, 30)]))));
        assert_eq!(spent_in(&proc, 1), None, "there is no such process");
        fs::remove_dir_all(&proc).expect("it is there");
    }

    #[test]
    fn a_thread_that_ends_takes_nothing_off_what_others_spent() {
        let then = Spent(BTreeMap::from([(1, 1000), (2, 5000), (3, 70)]));
        let now = Spent(BTreeMap::from([(1, 1400), (3, 20), (4, 7)]));
        assert_eq!(now.since(&then), 400 + 20 + 7, "2 has ended, 3 is another one, 4 is new");
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
