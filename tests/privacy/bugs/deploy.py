"""Bugs of deployed hosts and pages."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="the SuperLink that is written admits any client",
        place="fedprivacy/deploy/handout/fedprivacy-superlink.service.jinja",
        old="--enable-supernode-auth ",
        new="",
        breaks=guarantees.HOST,
        tests=(
            "tests/deploy/test_handouts.py"
            "::test_the_superlink_answers_this_host_alone_over_tls_and_admits_none_but_registered_clients",
        ),
    ),
    Bug(
        meaning="the SuperLink that is written answers the network, where its other interfaces have no login",
        place="fedprivacy/deploy/handout/fedprivacy-superlink.service.jinja",
        old="--host 127.0.0.1",
        new="--host 0.0.0.0",
        breaks=guarantees.HOST,
        tests=(
            "tests/deploy/test_handouts.py"
            "::test_the_superlink_answers_this_host_alone_over_tls_and_admits_none_but_registered_clients",
        ),
    ),
    Bug(
        meaning="the SuperLink that is written speaks without TLS",
        place="fedprivacy/deploy/handout/fedprivacy-superlink.service.jinja",
        old="--ssl-ca-certfile {{ folder }}/ca.crt ",
        new="--insecure ",
        breaks=guarantees.HOST,
        tests=(
            "tests/deploy/test_handouts.py"
            "::test_the_superlink_answers_this_host_alone_over_tls_and_admits_none_but_registered_clients",
        ),
    ),
    Bug(
        meaning="the client that is written speaks without TLS",
        place="fedprivacy/deploy/handout/fedprivacy-client.service.jinja",
        old="--root-certificates {{ folder }}/ca.crt",
        new="--insecure",
        breaks=guarantees.HOST,
        tests=(
            "tests/deploy/test_handouts.py::test_a_client_speaks_to_none_but_the_server_over_tls_and_shows_its_own_key",
        ),
    ),
    Bug(
        meaning="what a client's service writes everybody on its host reads",
        place="fedprivacy/deploy/handout/fedprivacy-client.service.jinja",
        old="UMask=0077",
        new="UMask=0022",
        breaks=guarantees.HOST,
        tests=("tests/deploy/test_handouts.py::test_what_a_service_writes_no_other_account_reads",),
    ),
    Bug(
        meaning="the operator's commands speak without TLS",
        place="fedprivacy/deploy/handout/flower-config.toml.jinja",
        old="insecure = false",
        new="insecure = true",
        breaks=guarantees.HOST,
        tests=("tests/deploy/test_handouts.py::test_the_operator_s_commands_speak_to_the_superlink_over_tls",),
    ),
    Bug(
        meaning="the proxy that is written lets everybody through to the interfaces without a login",
        place="fedprivacy/deploy/handout/nginx.conf.jinja",
        old="return 404;",
        new="proxy_pass https://127.0.0.1:{{ superlink_port }};",
        breaks=guarantees.HOST,
        tests=("tests/deploy/test_handouts.py::test_the_proxy_lets_the_clients_interface_through_and_nothing_else",),
    ),
    Bug(
        meaning="a page of another origin reads a dashboard without a token by a name that begins like this machine's",
        place="fedprivacy.dashboard.security:is_loopback",
        old='host == "localhost"',
        new='host.startswith("localhost")',
        breaks=guarantees.PAGE,
        tests=("tests/dashboard/test_security.py::test_without_a_token_only_this_machine_s_names_are_answered",),
    ),
    Bug(
        meaning="a dashboard may stand in the frame of any page",
        place="fedprivacy.dashboard.security",
        old="""
            (
                "default-src 'none'; script-src 'self'; style-src 'self'; "
                "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
                "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
            )
        """,
        new="""
            (
                "default-src 'none'; script-src 'self'; style-src 'self'; "
                "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
                "base-uri 'none'; form-action 'self'; frame-ancestors *"
            )
        """,
        breaks=guarantees.PAGE,
        tests=(
            "tests/dashboard/test_security.py"
            "::test_a_page_runs_its_own_scripts_alone_and_stands_in_no_other_s_frame[/]",
        ),
    ),
    Bug(
        meaning="an interface that can be reached and asks for a login is taken for closed",
        place="fedprivacy.deploy.inspection:_interfaces",
        old="door.ask(method, path).status != 404",
        new="door.ask(method, path).status not in (401, 404)",
        breaks=guarantees.HOST,
        tests=(
            "tests/deploy/test_inspection.py"
            "::test_an_interface_that_answers_anything_but_that_it_is_not_there_is_open[401]",
        ),
    ),
    Bug(
        meaning="a what-if shows rounds that a budget which has expired would allow",
        place="fedprivacy.dashboard.forecasts:_asked",
        old="allowance.expired",
        new="False",
        breaks=guarantees.FIGURE,
        tests=("tests/dashboard/test_api.py::test_what_if_leaves_nothing_of_a_budget_that_has_expired",),
    ),
)
