"""The API's own description on /docs and /openapi.json.

Routes parse their bodies themselves, so FastAPI does not see them; they are written in here.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from server.protocol.chat import ChatRequest
from server.protocol.completions import CompletionRequest
from server.protocol.embeddings import EmbeddingRequest
from server.protocol.tokens import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest

BODIES: Mapping[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions": (ChatRequest,),
    "/v1/completions": (CompletionRequest,),
    "/v1/embeddings": (EmbeddingRequest,),
    "/tokenize": (TokenizeTextRequest, TokenizeChatRequest),
    "/detokenize": (DetokenizeRequest,),
}
"""By path: the forms that its body may have."""


class DescribedAPI(FastAPI):
    """FastAPI whose description has the request bodies."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is not None:
            return self.openapi_schema
        described = super().openapi()
        schemas = described.setdefault("components", {}).setdefault("schemas", {})
        for path, models in BODIES.items():
            forms = []
            for model in models:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
                forms.append({"$ref": f"#/components/schemas/{model.__name__}"})
            described["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": forms[0] if len(forms) == 1 else {"anyOf": forms}
                    }
                },
            }
        return described
