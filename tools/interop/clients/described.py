"""Changes of the OpenAPI document for the fuzzer, by the variable DESCRIBED.

Always: requests wait for a short time only, since the fuzzer requests locks that it holds itself. With `one-claim`: every
request is about one lock and one claim, so that it meets the effects of earlier requests.
"""

import hashlib
import os

import schemathesis

KEY = "k" * 43
CLAIM = hashlib.sha256(KEY.encode()).hexdigest()[:20] + "000000000001"


@schemathesis.hook
def before_load_schema(context, raw_schema):
    schemas = raw_schema["components"]["schemas"]
    for body in ("Take", "SimpleTake"):
        schemas[body]["properties"]["wait_ms"] = only(0, 20)
    for parameter in raw_schema["paths"]["/v1/lock"]["get"]["parameters"]:
        if parameter["name"] == "wait_ms":
            parameter["schema"] = only(0, 20)
    if os.environ["DESCRIBED"] != "one-claim":
        return
    one = {"id": CLAIM, "claim": CLAIM, "Fencelock-Key": KEY, "name": "one"}
    for routes in raw_schema["paths"].values():
        for route in routes.values():
            for parameter in route.get("parameters", []):
                if parameter["name"] in one:
                    parameter["schema"] = only(one[parameter["name"]])
    for body in ("Take", "SimpleTake", "Renew", "RenewOne", "BatchOne", "Release", "Attest", "Evict"):
        properties = schemas[body]["properties"]
        for member in one.keys() & properties.keys():
            properties[member] = only(one[member])
        if "ttl_ms" in properties:
            properties["ttl_ms"] = only(100, 30000)
            properties["lock_delay_ms"] = only(0)


def only(*values):
    return {"enum": list(values)}
