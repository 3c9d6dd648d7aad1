//! Explains errors of the broker and of connections to it, and classifies them.

use std::io;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};

use super::address::Address;
use crate::Error;
use crate::error::Cause;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Connecting,
    Declaring,
    /// Opening a queue that already exists.
    Opening,
    Working,
}

/// Returns the broker's code for an error.
pub(super) fn reply(error: &lapin::Error) -> Option<&AMQPErrorKind> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.kind()),
        _ => None,
    }
}

/// Returns the message of the broker or of the system.
pub(super) fn message(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

/// Returns whether the user lacks a permission.
pub(super) fn is_refusal(error: &lapin::Error) -> bool {
    matches!(reply(error), Some(AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)))
}

/// Returns whether a queue was deleted or never created. The broker sends the same code for a queue that is down for a
/// while, but another text.
pub(super) fn is_gone(error: &lapin::Error) -> bool {
    matches!(reply(error), Some(AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND)))
        && message(error).contains("no queue '")
}

/// Translates an error of the broker or the connection.
pub(super) fn explain(address: &Address, during: Operation, error: lapin::Error) -> Error {
    let said = message(&error);
    if address.may_be_absent() && is_gone(&error) && during != Operation::Declaring {
        return address.absent(Cause::new(said, error));
    }
    let (user, vhost) = (address.user(), &address.uri.vhost);
    let (is_misconfigured, words) = match (reply(&error), during) {
        _ if is_refusal(&error) && during == Operation::Connecting => (
            true,
            format!("the broker rejects user {user} or the password; check the URL ({said})"),
        ),
        _ if is_refusal(&error) => (true, no_permission(address, &said)),
        (Some(AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)), Operation::Connecting) => (
            true,
            format!(
                "there is no virtual host {vhost}, or user {user} may not use it; create it or check the URL ({said})"
            ),
        ),
        (Some(AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)), Operation::Declaring) => (
            true,
            format!(
                "a different kind of queue has this name; delete that when it is empty, or choose another prefix ({said})"
            ),
        ),
        (_, Operation::Opening) if is_gone(&error) => (
            true,
            format!("it was deleted with its messages; restart this command to create it ({said})"),
        ),
        _ if is_certificate(&error) && address.encrypted() => (
            true,
            format!(
                "the broker's certificate is not trusted; name its authority in the URL, ?cacertfile=PATH ({said})"
            ),
        ),
        (_, Operation::Connecting) if is_connection_refused(&error) => {
            (false, format!("nothing listens at this address; is RabbitMQ running? ({said})"))
        }
        (_, Operation::Connecting) => (false, format!("cannot connect ({said})")),
        _ => (false, said),
    };
    let cause = Cause::new(words, error);
    if is_misconfigured { address.misconfigured(cause) } else { address.unavailable(cause) }
}

/// Returns the text for a user who may connect, but lacks a permission.
pub(super) fn no_permission(address: &Address, said: &str) -> String {
    format!(
        "user {} may not use it; ask for configure, write and read permission ({said})",
        address.user()
    )
}

fn io_kind(error: &lapin::Error) -> Option<io::ErrorKind> {
    match error.kind() {
        ErrorKind::IOError(error) => Some(error.kind()),
        _ => None,
    }
}

fn is_certificate(error: &lapin::Error) -> bool {
    io_kind(error) == Some(io::ErrorKind::InvalidData)
}

fn is_connection_refused(error: &lapin::Error) -> bool {
    io_kind(error) == Some(io::ErrorKind::ConnectionRefused)
}
