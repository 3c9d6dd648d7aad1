# Sourced by scripts/up and scripts/down: the components, their folders, and their running processes.
#
# GRISTMILL_COMPONENTS: folder of one set of components; two sets can run side by side.
# GRISTMILL_PORT_SHIFT: added to every port below.

components=${GRISTMILL_COMPONENTS:-$cache/components}
shift_by=${GRISTMILL_PORT_SHIFT:-0}
localstack_port=$((4566 + shift_by))
moto_port=$((5566 + shift_by))
rabbitmq_port=$((5672 + shift_by))
rabbitmq_management_port=$((15672 + shift_by))
rabbitmq_distribution_port=$((25672 + shift_by))
# A separate epmd, not that of the machine (4369), so that scripts/down can stop it.
epmd_port=$((14369 + shift_by))

# Process id and start time identify a process, since the system reuses ids.
identity() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }
remember() { echo "$2 $(identity "$2")" >"$components/$1.pid"; }
runs() {
    local pid began
    # A process that has already ended has no start time.
    [ -f "$components/$1.pid" ] && read -r pid began <"$components/$1.pid" && [ -n "$began" ] &&
        [ "$(identity "$pid")" = "$began" ]
}
stop() {
    local pid waited=0
    if runs "$1"; then
        read -r pid _ <"$components/$1.pid"
        kill "$pid" 2>/dev/null || true
        while runs "$1" && [ "$waited" -lt 300 ]; do
            sleep 0.1
            waited=$((waited + 1))
        done
        # It leads its own process group.
        ! runs "$1" || kill -9 -- "-$pid"
    fi
    rm -f "$components/$1.pid"
}

rabbitmq_environment() {
    local folder=$components/rabbitmq
    # Its home contains its cookie, which is needed to send it commands.
    export HOME=$folder
    export RABBITMQ_NODENAME=gristmill-$rabbitmq_port@localhost RABBITMQ_NODE_PORT=$rabbitmq_port
    export RABBITMQ_BASE=$folder RABBITMQ_MNESIA_BASE=$folder/data RABBITMQ_LOG_BASE=$folder/log
    export RABBITMQ_CONF_ENV_FILE=$folder/none RABBITMQ_CONFIG_FILE=$folder/rabbitmq.conf
    export RABBITMQ_ENABLED_PLUGINS_FILE=$folder/enabled_plugins RABBITMQ_PID_FILE=$folder/server.pid
    export RABBITMQ_DIST_PORT=$rabbitmq_distribution_port
    export ERL_EPMD_PORT=$epmd_port ERL_EPMD_ADDRESS=127.0.0.1
    export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
}
