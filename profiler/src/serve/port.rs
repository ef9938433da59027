//! Who listens on a port of this machine.
//!
//! Format: `proc_pid_net(5)`, `/proc/net/tcp`, whose tenth field is the socket's inode; `/proc/PID/fd` links to it as
//! `socket:[INODE]`.

use std::fs;

use crate::procfs::{comm, processes};

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// `TCP_LISTEN` in <https://github.com/torvalds/linux/blob/v6.12/include/net/tcp_states.h>.
const LISTENS: &str = "0A";

/// The process that listens on this port, by name and id, where that can be seen.
pub(super) fn owner(port: u16) -> Option<String> {
    let inodes: Vec<u64> = TABLES
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, port))
        .collect();
    let pid = processes().find(|pid| holds_one(*pid, &inodes))?;
    let name = comm::read(pid)?;
    Some(format!("{} (pid {pid})", name.text()))
}

/// The sockets that listen on a port.
fn listening(table: &str, port: u16) -> Vec<u64> {
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local, 16) == Ok(port) && fields.get(3) == Some(&LISTENS);
        fields.get(9).filter(|_| is_it)?.parse().ok()
    };
    table.lines().filter_map(inode).collect()
}

fn holds_one(pid: u32, inodes: &[u64]) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = descriptors.filter_map(|it| fs::read_link(it.path()).ok());
    let inode = |link: std::path::PathBuf| {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
    };
    links.filter_map(inode).any(|it| inodes.contains(&it))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn who_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let owner = owner(port).unwrap();
        assert!(owner.ends_with(&format!(" (pid {})", std::process::id())), "{owner}");
    }

    #[test]
    fn connections_are_not_listeners() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1E25 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0
   1: 0100007F:1E25 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 78 1 0
   2: 0100007F:1E26 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 79 1 0
   3: bad
";
        assert_eq!(listening(table, 0x1e25), [77]);
        assert!(listening(table, 1).is_empty());
    }
}
