//! Users by name.

use std::fs;

/// Where they are listed: passwd(5).
const USERS: &str = "/etc/passwd";

/// The id of a user, who may be given by it; `None` if there is no user of this name. Users of directory services are
/// not known by name.
pub(crate) fn id_of(user: &str) -> Option<u32> {
    if user == "root" {
        return Some(0);
    }
    user.parse().ok().or_else(|| id_in(&fs::read_to_string(USERS).ok()?, user))
}

fn id_in(listed: &str, user: &str) -> Option<u32> {
    listed.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next()? == user;
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_ids() {
        let listed = "root:x:0:0:root:/root:/bin/bash\nbad\nww:x\nwww:x:33:33:www:/:/bin/false\n";
        assert_eq!(id_in(listed, "www"), Some(33));
        assert_eq!(
            (id_in(listed, "ww"), id_in(listed, ""), id_in(listed, "x")),
            (None, None, None)
        );
        assert_eq!((id_of("12"), id_of("root")), (Some(12), Some(0)));
    }
}
