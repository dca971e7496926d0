"""LangChain's integration of Ollama."""

from features import refused, try_all, url
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import ResponseError

FIXED = {"base_url": url(), "temperature": 0, "num_predict": 12}
model = ChatOllama(model="actor", reasoning=False, **FIXED)


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return city


def generate():
    assert OllamaLLM(model="tale", **FIXED).invoke("A fox")


def chat():
    assert model.invoke("Hi").content == "Hello there now."


def stream():
    assert "".join(piece.content for piece in model.stream("Hi")) == "Hello there now."


def tools():
    able = model.bind_tools([weather])
    said = [HumanMessage("Hi")]
    said.append(able.invoke(said))
    [call] = said[-1].tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    said.append(ToolMessage("3", tool_call_id=call["id"], name="weather"))
    assert able.invoke(said).content == "It is cold."


def schema():
    form = {"title": "One", "type": "object", "properties": {"animal": {"enum": ["fox", "bear"]}}}
    form |= {"required": ["animal"], "additionalProperties": False}
    teller = ChatOllama(model="tale", base_url=url(), temperature=0, num_predict=60)
    able = teller.with_structured_output(form, method="json_schema")
    assert able.invoke("Hi")["animal"] in ("fox", "bear")


def thinking():
    found = ChatOllama(model="actor", reasoning=True, **FIXED).invoke("Hi")
    assert (found.additional_kwargs["reasoning_content"], found.content) == ("hm", "Yes")


def embed():
    found = OllamaEmbeddings(model="tale", base_url=url()).embed_documents(["a fox", "a bear"])
    assert len(found) == 2


def errors():
    refused(lambda: ChatOllama(model="no", **FIXED).invoke("Hi"), ResponseError, 404)


if __name__ == "__main__":
    try_all([generate, chat, stream, tools, schema, thinking, embed, errors])
