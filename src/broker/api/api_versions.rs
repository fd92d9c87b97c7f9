//! ApiVersions: <https://kafka.apache.org/protocol#The_Messages_ApiVersions>.
//!
//! A version that is not served gets UNSUPPORTED_VERSION in the form of version 0, with the list (KIP-511): clients
//! learn from it which version to try.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};

use super::{Api, Call, SERVED, text};
use crate::broker::state::State;

/// Whether clients may leave out adding partitions and groups to transactions (KIP-890): from 2 on.
const TRANSACTION_VERSION: (&str, i16) = ("transaction.version", 2);

pub(crate) struct ApiVersions;

impl Api for ApiVersions {
    const KEY: ApiKey = ApiKey::ApiVersions;
    const VERSIONS: (i16, i16) = (0, 4);
    type Request = ApiVersionsRequest;
    type Response = ApiVersionsResponse;

    fn handle(_: &mut State, call: &Call<'_>, _: ApiVersionsRequest) -> Option<ApiVersionsResponse> {
        Some(with_features(list(), call.version))
    }

    fn refuse(_: &ApiVersionsRequest, _: &Call<'_>, code: i16) -> ApiVersionsResponse {
        ApiVersionsResponse::default().with_error_code(code)
    }
}

fn list() -> ApiVersionsResponse {
    let versions = SERVED.iter().map(|(key, min, max)| {
        ApiVersion::default().with_api_key(*key as i16).with_min_version(*min).with_max_version(*max)
    });
    ApiVersionsResponse::default().with_api_keys(versions.collect())
}

/// Adds what is finalized. Clients up to version 3 cannot read that a feature is supported from 0 on: Kafka leaves it
/// out then.
fn with_features(response: ApiVersionsResponse, version: i16) -> ApiVersionsResponse {
    let (name, level) = TRANSACTION_VERSION;
    if version < 3 {
        return response;
    }
    let finalized = FinalizedFeatureKey::default().with_name(text(name));
    let finalized = finalized.with_max_version_level(level).with_min_version_level(level);
    let response = response.with_finalized_features_epoch(1).with_finalized_features(vec![finalized]);
    if version < 4 {
        return response;
    }
    let supported = SupportedFeatureKey::default().with_name(text(name)).with_max_version(level);
    response.with_supported_features(vec![supported])
}

/// The answer to a version that is not served; to be sent as version 0.
pub(crate) fn unsupported() -> ApiVersionsResponse {
    list().with_error_code(ResponseError::UnsupportedVersion.code())
}
