//! DescribeConfigs: <https://kafka.apache.org/protocol#The_Messages_DescribeConfigs>.
//!
//! A topic shows what CreateTopics set and a few defaults that tools ask for. Only the defaults that are listed here
//! mean anything to this broker.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::{ApiKey, DescribeConfigsRequest, DescribeConfigsResponse};

use super::{Api, Call, text};
use crate::broker::state::State;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Where a value comes from, in Kafka's numbers.
const SOURCE_TOPIC: i8 = 1;
const SOURCE_DEFAULT: i8 = 5;

pub(crate) struct DescribeConfigs;

impl Api for DescribeConfigs {
    const KEY: ApiKey = ApiKey::DescribeConfigs;
    const VERSIONS: (i16, i16) = (1, 4);
    type Request = DescribeConfigsRequest;
    type Response = DescribeConfigsResponse;

    fn handle(
        state: &mut State,
        _: &Call<'_>,
        request: DescribeConfigsRequest,
    ) -> Option<DescribeConfigsResponse> {
        let results = request.resources.iter().map(|resource| match values(state, resource) {
            Ok(values) => {
                let wanted = |name: &str| {
                    let keys = resource.configuration_keys.as_ref();
                    keys.is_none_or(|keys| keys.is_empty() || keys.iter().any(|key| key.as_str() == name))
                };
                let configs = values.into_iter().filter(|(name, _, _)| wanted(name)).map(one);
                refused(resource, 0).with_configs(configs.collect())
            }
            Err(code) => refused(resource, code),
        });
        Some(DescribeConfigsResponse::default().with_results(results.collect()))
    }

    fn refuse(request: &DescribeConfigsRequest, _: &Call<'_>, code: i16) -> DescribeConfigsResponse {
        let results = request.resources.iter().map(|resource| refused(resource, code));
        DescribeConfigsResponse::default().with_results(results.collect())
    }
}

fn refused(resource: &DescribeConfigsResource, code: i16) -> DescribeConfigsResult {
    DescribeConfigsResult::default()
        .with_error_code(code)
        .with_resource_type(resource.resource_type)
        .with_resource_name(resource.resource_name.clone())
}

fn one((name, value, source): (String, String, i8)) -> DescribeConfigsResourceResult {
    DescribeConfigsResourceResult::default()
        .with_name(text(name))
        .with_value(Some(text(value)))
        .with_config_source(source)
}

/// Name, value and source.
fn values(state: &State, resource: &DescribeConfigsResource) -> Result<Vec<(String, String, i8)>, i16> {
    let defaults = [
        ("cleanup.policy", "delete".to_owned()),
        ("compression.type", "producer".to_owned()),
        ("max.message.bytes", state.config.max_message_bytes.to_string()),
        ("message.timestamp.type", "CreateTime".to_owned()),
        ("min.insync.replicas", "1".to_owned()),
        ("retention.bytes", state.config.retain_bytes.to_string()),
        ("retention.ms", "-1".to_owned()),
    ];
    let set = match resource.resource_type {
        TOPIC => {
            let topic = state.topics.get(&resource.resource_name);
            &topic.ok_or(ResponseError::UnknownTopicOrPartition.code())?.configs
        }
        BROKER => {
            let configs = [
                ("auto.create.topics.enable", state.config.auto_create_partitions.is_some().to_string()),
                ("num.partitions", state.config.auto_create_partitions.unwrap_or(1).to_string()),
                ("message.max.bytes", state.config.max_message_bytes.to_string()),
            ];
            let named = configs.into_iter().map(|(name, value)| (name.to_owned(), value, SOURCE_DEFAULT));
            return Ok(named.collect());
        }
        _ => return Err(ResponseError::InvalidRequest.code()),
    };
    let unset = defaults.into_iter().filter(|(name, _)| !set.contains_key(*name));
    let set = set.iter().map(|(name, value)| (name.clone(), value.clone(), SOURCE_TOPIC));
    Ok(set.chain(unset.map(|(name, value)| (name.to_owned(), value, SOURCE_DEFAULT))).collect())
}
