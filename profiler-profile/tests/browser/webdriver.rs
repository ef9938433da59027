//! A browser that is driven as a person would: by the WebDriver protocol, <https://www.w3.org/TR/webdriver2/>.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
// The example has a use for less than the tests.
#![allow(dead_code)]

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

/// Keys without a character. <https://www.w3.org/TR/webdriver2/#keyboard-actions>
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";
pub(crate) const UP: &str = "\u{e013}";
pub(crate) const F3: &str = "\u{e033}";

/// What an element is called in answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A window of headless Chromium, which ends with this.
pub(crate) struct Browser {
    driver: Child,
    /// It would fail to write if nobody held the other end.
    _stdout: BufReader<ChildStdout>,
    agent: ureq::Agent,
    session: String,
}

impl Browser {
    /// `Err` says which program is not installed.
    pub(crate) fn start(width: u32, height: u32) -> Result<Self, &'static str> {
        Self::start_with(width, height, json!({ "goog:loggingPrefs": { "browser": "ALL" } }))
    }

    /// The same, with a trace of these categories, which is in the log.
    /// <https://developer.chrome.com/docs/chromedriver/logging/performance-log>
    pub(crate) fn start_traced(
        width: u32,
        height: u32,
        categories: &str,
    ) -> Result<Self, &'static str> {
        let logs = json!({
            "goog:loggingPrefs": { "performance": "ALL" },
            "goog:chromeOptions": { "perfLoggingPrefs": {
                "traceCategories": categories, "enableNetwork": false, "enablePage": false,
            } },
        });
        Self::start_with(width, height, logs)
    }

    fn start_with(width: u32, height: u32, mut capabilities: Value) -> Result<Self, &'static str> {
        let driver = find(&["chromedriver"]).ok_or("chromedriver is not installed")?;
        let chromium = find(&["chromium", "chromium-browser", "google-chrome"])
            .ok_or("chromium is not installed")?;
        let mut driver = Command::new(driver)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(driver.stdout.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "chromedriver ended");
            if let Some((_, port)) = line.trim_end().rsplit_once("successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = ureq::Agent::new_with_config(config.build());
        let session = format!("http://127.0.0.1:{port}/session");
        let mut browser = Self { driver, _stdout: stdout, agent, session };
        let mut args = vec![
            "--headless=new".to_owned(),
            "--disable-gpu".into(),
            "--hide-scrollbars".into(),
            format!("--window-size={width},{height}"),
        ];
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            args.push("--no-sandbox".into());
        }
        let options = &mut capabilities["goog:chromeOptions"];
        options["binary"] = json!(chromium);
        options["args"] = json!(args);
        capabilities["unhandledPromptBehavior"] = json!("ignore");
        let answer = browser.post("", &json!({ "capabilities": { "alwaysMatch": capabilities } }));
        browser.session.push('/');
        browser.session.push_str(answer["sessionId"].as_str().unwrap());
        Ok(browser)
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.agent.get(format!("{}{path}", self.session)).call();
        value(path, answer.unwrap())
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.agent.post(format!("{}{path}", self.session)).send(body.to_string());
        value(&format!("{path} {body}"), answer.unwrap())
    }

    /// Opens a file, and waits until it is loaded.
    pub(crate) fn open(&self, file: &Path) {
        self.post("/url", &json!({ "url": format!("file://{}", file.display()) }));
    }

    /// Opens an address, and waits until its page is loaded.
    pub(crate) fn visit(&self, address: &str) {
        self.post("/url", &json!({ "url": address }));
    }

    /// Moves the mouse from a place in the window to another while it is pressed.
    pub(crate) fn drag(&self, from: (f64, f64), to: (f64, f64)) {
        let to_place =
            |(x, y): (f64, f64)| json!({ "type": "pointerMove", "x": x.round(), "y": y.round() });
        let button = |kind| json!({ "type": kind, "button": 0 });
        let actions = [to_place(from), button("pointerDown"), to_place(to), button("pointerUp")];
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.post("/actions", &json!({ "actions": [mouse] }));
    }

    /// What a script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What a script passes to `done`.
    pub(crate) fn wait_for(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    fn element(&self, selector: &str) -> String {
        let query = json!({ "using": "css selector", "value": selector });
        self.post("/element", &query)[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Clicks in the middle of an element.
    pub(crate) fn click(&self, selector: &str) {
        self.post(&format!("/element/{}/click", self.element(selector)), &json!({}));
    }

    /// Types into an element.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        let path = format!("/element/{}/value", self.element(selector));
        self.post(&path, &json!({ "text": text }));
    }

    /// Moves the mouse to a place in the window, and clicks there if asked to.
    pub(crate) fn mouse(&self, x: f64, y: f64, clicks: bool) {
        let mut actions = vec![json!({ "type": "pointerMove", "x": x.round(), "y": y.round() })];
        if clicks {
            let button = |kind| json!({ "type": kind, "button": 0 });
            actions.extend([button("pointerDown"), button("pointerUp")]);
        }
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.post("/actions", &json!({ "actions": [mouse] }));
    }

    /// Presses keys, wherever the focus is; those without a character are in the Unicode's private range.
    pub(crate) fn keys(&self, keys: &str) {
        let press = |key| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": String::from(key) }))
        };
        let actions: Vec<Value> = keys.chars().flat_map(press).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.post("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Presses a key while another is held.
    pub(crate) fn chord(&self, held: &str, key: &str) {
        let event = |kind: &str, value: &str| json!({ "type": kind, "value": value });
        let actions = [
            event("keyDown", held),
            event("keyDown", key),
            event("keyUp", key),
            event("keyUp", held),
        ];
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.post("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Answers what the page asks.
    pub(crate) fn answer(&self, text: &str) {
        self.post("/alert/text", &json!({ "text": text }));
        self.post("/alert/accept", &json!({}));
    }

    /// The text of an element, as it is shown.
    pub(crate) fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({selector:?}).textContent.trim()");
        self.run(&script).as_str().unwrap().to_owned()
    }

    /// What the page has told the console, as when its policy forbids something.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({ "type": "browser" }));
        log.as_array().unwrap().iter().map(|it| it["message"].to_string()).collect()
    }

    /// What the trace has gathered since it was asked for last; it may come with the next answer only.
    /// <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>
    pub(crate) fn trace(&self) -> Vec<Value> {
        let log = self.post("/se/log", &json!({ "type": "performance" }));
        let messages = log.as_array().unwrap().iter().map(|it| it["message"].as_str().unwrap());
        let messages = messages.map(|it| serde_json::from_str::<Value>(it).unwrap());
        let events = messages.filter(|it| it["message"]["method"] == "Tracing.dataCollected");
        events.map(|it| it["message"]["params"].clone()).collect()
    }

    /// Shows pages to a user who prefers dark ones.
    pub(crate) fn prefer_dark(&self) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": "dark" }]);
        let params = json!({ "features": feature });
        let command = json!({ "cmd": "Emulation.setEmulatedMedia", "params": params });
        self.post("/goog/cdp/execute", &command);
    }

    /// What the page's script holds, without what it has let go.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let ask = |command: &str| {
            self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": {} }))
        };
        ask("HeapProfiler.collectGarbage");
        ask("Runtime.getHeapUsage")["usedSize"].as_u64().unwrap()
    }

    /// A picture of the window, as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let base64 = base64::engine::general_purpose::STANDARD;
        let picture = self.get("/screenshot");
        base64::Engine::decode(&base64, picture.as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.agent.delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// What the driver answers to a command.
fn value(command: &str, mut answer: ureq::http::Response<ureq::Body>) -> Value {
    let text = answer.body_mut().with_config().limit(1 << 28).read_to_string().unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert!(answer["value"]["error"].is_null(), "{command}: {answer}");
    answer["value"].clone()
}

/// The first of these programs that is installed.
fn find(names: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let directories: Vec<PathBuf> = env::split_paths(&path).collect();
    names.iter().find_map(|name| {
        directories.iter().map(|directory| directory.join(name)).find(|it| it.is_file())
    })
}
