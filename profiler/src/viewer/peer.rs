//! Who is at the other end of a connection on this machine.
//!
//! Format: `proc_pid_net(5)`, `/proc/net/tcp`: `sl local_address rem_address st tx:rx tr:tm retrnsmt uid …`, in
//! hexadecimal but for the uid.

use std::fs;

/// IPv4 connections, and those that programs have made as IPv6 ones.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// How 127.0.0.1 ends there, in the byte order of all machines that we run on.
const LOOPBACK: &str = "0100007F";
/// And what ::1 is.
const LOOPBACK_6: &str = "00000000000000000000000001000000";

/// The user whose socket is bound to `port` and connected to our `own` port; `None` if there is none.
pub(crate) fn uid(port: u16, own: u16) -> Option<u32> {
    TABLES.iter().find_map(|table| uid_in(&fs::read_to_string(table).ok()?, port, own))
}

fn uid_in(table: &str, port: u16, own: u16) -> Option<u32> {
    let is = |address: &str, port: u16| {
        let parts = address.split_once(':');
        parts.is_some_and(|(host, at)| {
            (host.ends_with(LOOPBACK) || host == LOOPBACK_6)
                && u16::from_str_radix(at, 16) == Ok(port)
        })
    };
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = is(fields.next()?, port) && is(fields.next()?, own);
        fields.nth(4).filter(|_| is_it)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_of_who_has_made_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect(("127.0.0.1", own)).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        assert_eq!(uid(peer.port(), own), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(uid(own, own), None);
        drop(stream);
    }

    #[test]
    fn both_ends_have_to_be_right() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     7        0 1 1 0
   1: 0100007F:C001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0
   2: 0A00000A:C002 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 3 1 0
   3: 0000000000000000FFFF00000100007F:C003 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0 12 0
   4: 00000000000000000000000001000000:C004 00000000000000000000000001000000:1F90 01 0:0 0:0 0 13 0
   5: bad
";
        assert_eq!(uid_in(table, 0xc001, 0x1f90), Some(1000));
        assert_eq!(uid_in(table, 0xc003, 0x1f90), Some(12));
        assert_eq!(uid_in(table, 0xc004, 0x1f90), Some(13));
        assert_eq!(uid_in(table, 0xc002, 0x1f90), None);
        assert_eq!(uid_in(table, 0xc001, 0x1f91), None);
    }
}
