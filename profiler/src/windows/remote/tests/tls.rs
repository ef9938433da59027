//! Certificates, by a server that others have written.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use profiler_testing::skipped;

use super::*;

/// Answers each POST with 200; asks for a certificate if there is a third argument.
const SERVER: &str = "
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers['content-length']))
        self.send_response(200)
        self.send_header('content-length', '0')
        self.end_headers()
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_): pass
server = Server(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
if len(sys.argv) > 3:
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(sys.argv[3])
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
server.serve_forever()
";

struct Server(Child, String);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server(dir: &Path, arguments: &[&str]) -> Option<Server> {
    let mut server = Command::new("python3")
        .args(["-c", SERVER])
        .args(arguments)
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    Some(Server(server, format!("https://localhost:{}", port.trim())))
}

fn certificate(dir: &Path, name: &str) -> Option<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")])
        .current_dir(dir)
        .output();
    made.ok()?.status.success().then_some(())
}

#[test]
fn only_a_store_with_a_certificate_that_is_trusted_gets_windows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    if ["server", "client"].iter().any(|it| certificate(path, it).is_none()) {
        return skipped("openssl is not installed, or too old");
    }
    let Some(anyone) = server(path, &["server.pem", "server.key"]) else {
        return skipped("python3 is not installed");
    };
    let known = server(path, &["server.pem", "server.key", "client.pem"]).unwrap();
    let trusting = Connection { ca_file: Some(path.join("server.pem")), ..connection() };
    let keys = (path.join("client.pem"), path.join("client.key"));
    let with_key = Connection { client: Some(keys), ..trusting.clone() };
    for (server, connection, is_sent) in [
        (&anyone, connection(), false),
        (&anyone, trusting.clone(), true),
        (&known, trusting, false),
        (&known, with_key, true),
    ] {
        let spool = tempfile::tempdir().unwrap();
        let (mut remote, counts) = open(&server.1, spool.path(), &connection, &[]);
        remote.take(&window(), &counts).unwrap();
        remote.go_on(&counts);
        let fates = counts.read(true);
        assert_eq!((fates.written == 1, fates.spooled == 0), (is_sent, is_sent), "{connection:?}");
    }
    fs::write(path.join("server.pem"), "none").unwrap();
    let wrong = Connection { ca_file: Some(path.join("server.pem")), ..connection() };
    let url = anyone.1.parse().unwrap();
    let error = Client::new(&OTLP, &url, &wrong, &[]).unwrap_err();
    assert!(error.to_string().starts_with("--ca-file: no certificate"), "{error}");
}
