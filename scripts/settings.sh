# Sourced by every script: common folders and functions. Builds and downloads are stored outside the clone, so that the next
# clone can use them.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gristmill
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}

say() { printf '\n== %s\n' "$*" >&2; }

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# install_packages NAME…    (Debian packages)
install_packages() {
    local as_root=()
    command -v apt-get >/dev/null || fail "Packages are missing. Install them (Debian's names: $*)."
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    say "installing $*"
    # An interrupted installation blocks every later one until it is finished.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a >&2 || true
    "${as_root[@]}" apt-get update -qq >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" >&2
}

need_cargo() {
    command -v cargo >/dev/null && return
    # rustup installs it here, but a shell opened before does not have it on its PATH.
    [ -x "$HOME/.cargo/bin/cargo" ] && PATH=$HOME/.cargo/bin:$PATH && return
    fail "cargo is missing. Install Rust 1.95 or newer, then run this again:
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh
The build also needs a C compiler (on Debian: apt-get install build-essential)."
}
