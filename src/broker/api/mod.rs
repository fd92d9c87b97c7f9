//! The APIs that are served: one file each, its version range on top.
//!
//! A handler sees the whole state and answers at once, or parks the ticket with whoever will answer it.

mod add_offsets_to_txn;
mod add_partitions_to_txn;
pub(super) mod api_versions;
mod create_partitions;
mod create_topics;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_cluster;
mod describe_configs;
mod describe_groups;
mod describe_producers;
mod describe_transactions;
mod end_txn;
pub(crate) mod fetch;
mod find_coordinator;
mod heartbeat;
mod init_producer_id;
pub(super) mod join_group;
mod leave_group;
mod list_groups;
mod list_offsets;
mod list_transactions;
mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
mod produce;
pub(super) mod sync_group;
mod txn_offset_commit;

use bytes::Bytes;
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};

use keylane_protocol::bounded::Bounded;

use super::cluster::ConnId;
use super::state::State;

/// A request that is owed an answer. An answer to a connection that is gone goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(super) conn: ConnId,
    /// Of this request among all of the cluster.
    pub(super) serial: u64,
    pub(super) correlation: i32,
    pub(super) version: i16,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) ticket: Ticket,
    /// The node that was asked.
    pub(crate) node: i32,
    pub(crate) version: i16,
    pub(crate) client_id: &'a str,
    pub(crate) client_host: &'a str,
}

/// One API.
pub(crate) trait Api {
    const KEY: ApiKey;
    /// The lowest and the highest version that are served.
    const VERSIONS: (i16, i16);
    type Request: Decodable;
    type Response: Encodable + HeaderVersion;

    /// Carries the request out. `None`: whoever holds the ticket answers by [`State::reply`].
    fn handle(state: &mut State, call: &Call<'_>, request: Self::Request) -> Option<Self::Response>;

    /// The answer that says nothing but this error, in the places where the API carries it.
    fn refuse(request: &Self::Request, call: &Call<'_>, code: i16) -> Self::Response;

    /// False for what Kafka answers by nothing, or by closing the connection.
    fn wants_answer(_request: &Self::Request) -> bool {
        true
    }
}

/// How a request is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serve {
    Handle,
    /// Only with this error.
    Refuse(i16),
}

/// The request header that came with the flexible layouts (KIP-482).
const FLEXIBLE_HEADER: i16 = 2;

fn run<A: Api>(state: &mut State, call: &Call<'_>, mut body: Bytes, serve: Serve) -> Result<(), String> {
    // The older layouts count in 32 bits, which cannot be told from other numbers: there the decoder believes a client.
    let request = if A::KEY.request_header_version(call.version) >= FLEXIBLE_HEADER {
        A::Request::decode(&mut Bounded::new(body), call.version)
    } else {
        A::Request::decode(&mut body, call.version)
    };
    let request = request.map_err(|error| error.to_string())?;
    let response = match serve {
        Serve::Handle => A::handle(state, call, request),
        Serve::Refuse(_) if !A::wants_answer(&request) => {
            state.reply_by_closing(call.ticket);
            None
        }
        Serve::Refuse(code) => Some(A::refuse(&request, call, code)),
    };
    if let Some(response) = response {
        state.reply(call.ticket, &response);
    }
    Ok(())
}

const fn row<A: Api>() -> (ApiKey, i16, i16) {
    (A::KEY, A::VERSIONS.0, A::VERSIONS.1)
}

macro_rules! served {
    ($($module:ident :: $api:ident),+ $(,)?) => {
        /// Number, lowest and highest version of all that is served.
        pub(super) const SERVED: &[(ApiKey, i16, i16)] =
            &[$(row::<$module::$api>()),+];

        /// Decodes and carries out a request of a version that is served.
        ///
        /// # Errors
        /// The body cannot be decoded: the connection is of no use any more.
        pub(super) fn serve(
            state: &mut State,
            call: &Call<'_>,
            key: ApiKey,
            body: Bytes,
            serve: Serve,
        ) -> Result<(), String> {
            match key {
                $(<$module::$api as Api>::KEY => run::<$module::$api>(state, call, body, serve),)+
                _ => Err("the API is not served".to_owned()),
            }
        }
    };
}

served! {
    produce::Produce,
    fetch::Fetch,
    list_offsets::ListOffsets,
    metadata::Metadata,
    find_coordinator::FindCoordinator,
    api_versions::ApiVersions,
    create_topics::CreateTopics,
    delete_topics::DeleteTopics,
    delete_records::DeleteRecords,
    offset_for_leader_epoch::OffsetForLeaderEpoch,
    describe_configs::DescribeConfigs,
    create_partitions::CreatePartitions,
    describe_cluster::DescribeCluster,
    init_producer_id::InitProducerId,
    add_partitions_to_txn::AddPartitionsToTxn,
    add_offsets_to_txn::AddOffsetsToTxn,
    end_txn::EndTxn,
    offset_commit::OffsetCommit,
    offset_fetch::OffsetFetch,
    join_group::JoinGroup,
    heartbeat::Heartbeat,
    leave_group::LeaveGroup,
    sync_group::SyncGroup,
    describe_groups::DescribeGroups,
    list_groups::ListGroups,
    delete_groups::DeleteGroups,
    offset_delete::OffsetDelete,
    txn_offset_commit::TxnOffsetCommit,
    describe_transactions::DescribeTransactions,
    list_transactions::ListTransactions,
    describe_producers::DescribeProducers,
}

/// The versions of an API, if it is served.
pub(super) fn versions(key: ApiKey) -> Option<(i16, i16)> {
    SERVED.iter().find(|(served, _, _)| *served == key).map(|(_, min, max)| (*min, *max))
}

/// Splits a request into its header and the rest.
///
/// # Errors
/// What is wrong with it. A version that is not served is found by the caller.
pub(super) fn read_header(frame: &mut Bytes) -> Result<(ApiKey, RequestHeader), String> {
    let (Some(key), Some(version)) = (frame.get(..2), frame.get(2..4)) else {
        return Err("the frame is too short for a header".to_owned());
    };
    let key = i16::from_be_bytes([key[0], key[1]]);
    let version = i16::from_be_bytes([version[0], version[1]]);
    let key = ApiKey::try_from(key).map_err(|()| format!("there is no API {key}"))?;
    // A client that is newer than all versions we know still uses the header of the newest.
    let header_version = key.request_header_version(version);
    let header = RequestHeader::decode(frame, header_version).map_err(|error| error.to_string())?;
    Ok((key, header))
}

/// A Rust string as the messages' own.
pub(crate) fn text(value: impl Into<String>) -> StrBytes {
    StrBytes::from_string(value.into())
}
