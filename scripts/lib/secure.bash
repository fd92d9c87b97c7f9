# shellcheck shell=bash
# TLS, SASL and ACLs for scripts/kafka start --secure: one node with a listener for each way in.
#
# Beside the plain listener, which may do everything: SSL, SASL_PLAINTEXT, SASL_SSL, and MTLS, which wants a client
# certificate. Users alice and bob, passwords alice-secret and bob-secret, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
# Everyone may do what no ACL forbids; ACLs are for the SASL users, as the plain listener's user is a super user.
# Takes from its caller: $dir, $nodes, $sports, free_port, say, die, bring.
# shellcheck disable=SC2154 # the caller assigns these

# Chooses the ports, makes the certificates, adds what "format" needs to know.
make_secure() {
  local user mechanism
  if [ "$nodes" != 1 ] || on_zookeeper; then die "--secure is for one KRaft node"; fi
  for _ in ssl sasl_plaintext sasl_ssl mtls; do sports+=("$(free_port)"); done
  make_certificates
  for user in alice bob; do
    for mechanism in SCRAM-SHA-256 SCRAM-SHA-512; do
      printf '%s\n' --add-scram "$mechanism=[name=$user,password=$user-secret]" >>"$dir/format-args"
    done
  done
}

# tls/: ca.pem; broker.pem, client.pem and their .key (PKCS#8); other-ca.pem, which signed nothing here.
make_certificates() {
  local tls=$dir/tls name
  command -v openssl >/dev/null || bring openssl openssl
  mkdir -p "$tls"
  {
    for name in ca other-ca; do
      openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -keyout "$tls/$name.key" -out "$tls/$name.pem" \
        -subj "/CN=test-$name" -addext basicConstraints=critical,CA:TRUE \
        -addext keyUsage=critical,keyCertSign,cRLSign
    done
    printf '%s\n' subjectAltName=DNS:localhost,IP:127.0.0.1 extendedKeyUsage=serverAuth,clientAuth >"$tls/ext.cnf"
    for name in broker client; do
      openssl req -newkey rsa:2048 -nodes -keyout "$tls/$name.key" -out "$tls/$name.csr" -subj "/CN=$name"
      openssl x509 -req -in "$tls/$name.csr" -CA "$tls/ca.pem" -CAkey "$tls/ca.key" -CAcreateserial -days 3650 \
        -extfile "$tls/ext.cnf" -out "$tls/$name.pem"
    done
  } >"$tls/openssl.log" 2>&1 || { tail -n 5 "$tls/openssl.log" >&2; die "openssl could not make certificates"; }
  # Kafka's PEM store: the key, then the chain.
  cat "$tls/broker.key" "$tls/broker.pem" "$tls/ca.pem" >"$tls/broker-store.pem"
}

secure_properties() {
  local port=$1 cport=$2 ways map listener
  ways="PLAINTEXT://127.0.0.1:$port,SSL://127.0.0.1:${sports[0]},SASL_PLAINTEXT://127.0.0.1:${sports[1]}"
  ways+=",SASL_SSL://127.0.0.1:${sports[2]},MTLS://127.0.0.1:${sports[3]}"
  map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,MTLS:SSL
  cat <<LINES
listeners=$ways,CONTROLLER://127.0.0.1:$cport
advertised.listeners=$ways
listener.security.protocol.map=$map
ssl.keystore.type=PEM
ssl.keystore.location=$dir/tls/broker-store.pem
ssl.truststore.type=PEM
ssl.truststore.location=$dir/tls/ca.pem
listener.name.mtls.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
LINES
  for listener in sasl_plaintext sasl_ssl; do
    local module=org.apache.kafka.common.security users='user_alice="alice-secret" user_bob="bob-secret"'
    printf '%s\n' \
      "listener.name.$listener.plain.sasl.jaas.config=$module.plain.PlainLoginModule required $users;" \
      "listener.name.$listener.scram-sha-256.sasl.jaas.config=$module.scram.ScramLoginModule required;" \
      "listener.name.$listener.scram-sha-512.sasl.jaas.config=$module.scram.ScramLoginModule required;"
  done
}

secure_env() {
  printf '%s\n' "KAFKA_SSL=127.0.0.1:${sports[0]}" "KAFKA_SASL_PLAINTEXT=127.0.0.1:${sports[1]}" \
    "KAFKA_SASL_SSL=127.0.0.1:${sports[2]}" "KAFKA_MTLS=127.0.0.1:${sports[3]}" "KAFKA_TLS_DIR=$dir/tls"
}
