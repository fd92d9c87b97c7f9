//! ApiVersions: <https://kafka.apache.org/protocol#The_Messages_ApiVersions>.
//!
//! A version that is not served gets UNSUPPORTED_VERSION in the form of version 0, with the list (KIP-511): clients
//! learn from it which version to try.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};

use super::{Api, Call, SERVED};
use crate::broker::state::State;

pub(crate) struct ApiVersions;

impl Api for ApiVersions {
    const KEY: ApiKey = ApiKey::ApiVersions;
    const VERSIONS: (i16, i16) = (0, 4);
    type Request = ApiVersionsRequest;
    type Response = ApiVersionsResponse;

    fn handle(_: &mut State, _: &Call<'_>, _: ApiVersionsRequest) -> Option<ApiVersionsResponse> {
        Some(list())
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

/// The answer to a version that is not served; to be sent as version 0.
pub(crate) fn unsupported() -> ApiVersionsResponse {
    list().with_error_code(ResponseError::UnsupportedVersion.code())
}
