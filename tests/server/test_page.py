"""The page at ``/`` as a browser has it, against a server with a socket."""

import io
import re
import threading
import time
from base64 import b64encode

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
pytest.importorskip("playwright", reason="needs Playwright")
import uvicorn
from PIL import Image, ImageDraw
from playwright.sync_api import expect, sync_playwright

from tests.browser import BROWSER, needs_browser
from tests.patience import PATIENCE
from tests.server.serving import app_of
from wgpu_backend.cli.commands.serve.loads import make_bundled_entry

expect.set_options(timeout=1000 * PATIENCE)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    eyes = {"eyes": make_bundled_entry("eyes")}
    app = app_of(tmp_path_factory.mktemp("store"), hosts=("127.0.0.1",), fixed=eyes)
    config = uvicorn.Config(app, port=0, log_level="error", http="h11", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as made:
        opened = made.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser, address):
    wrong = []
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        expect(page.locator("#model option")).to_have_count(4)
        yield page
    assert wrong == []


def said(page, text, model="actor:latest"):
    page.select_option("#model", model)
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("context")
    return page.locator("article.assistant").last


@needs_browser
def test_a_conversation_is_held_kept_and_inspected(page):
    page.select_option("#think", "false")
    page.check("#probabilities")
    answer = said(page, "Hi <b>there</b>")
    expect(answer.locator(".text")).to_have_text("Hello there now.")
    expect(page.locator("article.user .text")).to_have_text("Hi <b>there</b>")
    expect(answer.locator("footer")).to_contain_text(re.compile(r"tokens/s · first token after"))
    expect(page.locator("#status")).to_contain_text(re.compile(r"context \d+ of 256 tokens"))
    expect(page.locator("#model option:checked")).to_have_text("● actor:latest (loaded)")
    page.reload()
    expect(page.locator("article.assistant .text")).to_have_text("Hello there now.")
    page.click("text=Inspect")
    tokens = page.locator("#tokens .tinted button")
    expect(tokens.nth(1)).to_have_text(" there")
    tokens.nth(1).focus()
    expect(page.locator("#tokens h3")).to_have_text("In place of “␣there”")
    expect(page.locator("#tokens .chosen code")).to_have_text("␣there")
    page.click("#new")
    expect(page.locator("article")).to_have_count(0)


@pytest.mark.slow
@needs_browser
def test_thoughts_are_folded_and_errors_are_the_servers(page):
    page.select_option("#think", "true")
    answer = said(page, "Why?")
    expect(answer.locator("summary")).to_have_text("Thoughts")
    expect(answer.locator("details div")).to_be_hidden()
    expect(answer.locator("details div")).to_have_text("hm")
    expect(answer.locator(".text")).to_have_text("Yes")
    page.select_option("#model", "tale:latest")
    page.fill("#prompt", "Why?")
    page.click("#send")
    expect(page.locator("#failure")).to_have_text('400: "tale:latest" does not support thinking')


@pytest.mark.slow
@needs_browser
def test_an_answer_is_stopped(page):
    page.fill("#option-num_predict", "200")
    page.select_option("#model", "tale:latest")
    page.fill("#prompt", "Tell me a story.")
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Stop")
    expect(page.locator("article.assistant .text")).to_contain_text(re.compile(r"\w \w"))
    page.keyboard.press("Escape")
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator("article.assistant footer")).to_contain_text("stopped")
    page.click("#tab-machine")
    expect(page.locator("#machine")).to_contain_text("0 of 2")


@needs_browser
def test_what_a_model_writes_becomes_elements_and_no_markup(page):
    text = "# Top\n- *one* `<i>`\n\n<img src=x> [a](https://x.y) [b](javascript:z)\n```py\n<b>\n```"
    page.evaluate(
        "async (text) => document.getElementById('log').replaceChildren("
        "...(await import('/page/markdown.js')).markdown(text))",
        text,
    )
    made = page.evaluate("document.getElementById('log').innerHTML")
    assert made == (
        "<h3>Top</h3><ul><li><em>one</em> <code>&lt;i&gt;</code></li></ul>"
        '<p>&lt;img src=x&gt; <a href="https://x.y" rel="noopener noreferrer" target="_blank">a</a>'
        ' [b](javascript:z)</p><div class="code"><div class="bar"><span>py</span>'
        '<button type="button" class="plain">Copy</button></div>'
        '<pre tabindex="0"><code>&lt;b&gt;</code></pre></div>'
    )


@pytest.mark.slow
@needs_browser
def test_code_is_copied_where_a_page_has_no_clipboard(page):
    """As in a page of plain http from another machine."""
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate(
        "async () => document.getElementById('log').replaceChildren("
        "...(await import('/page/markdown.js')).markdown('```\\na = 1\\n```'))"
    )
    page.click("#log button")
    expect(page.locator("#log button")).to_have_text("Copied")
    page.focus("#prompt")
    page.keyboard.press("Control+V")
    assert page.input_value("#prompt") == "a = 1"


@pytest.mark.slow
@needs_browser
def test_the_inspector_shows_attention_graph_and_device(page):
    page.select_option("#model", "tale:latest")
    page.click("#tab-attention")
    page.click("#attend")
    expect(page.locator("#weights canvas")).to_be_visible()
    expect(page.locator("#weights p").first).to_contain_text("attends to")
    page.fill("#layer", "50")
    page.click("#attend")
    expect(page.locator("#weights .wrong")).to_contain_text("layer: 50, the model has 0 to")
    page.keyboard.press("Tab")
    page.locator("#tab-attention").press("ArrowRight")
    page.click("#graph-show")
    expect(page.locator("#steps table").last).to_contain_text("rms_norm")
    page.click("#tab-machine")
    expect(page.locator("#machine")).to_contain_text("NumPy (cpu)")


@pytest.mark.slow
@needs_browser
def test_light_dark_and_narrow(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    dark = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == dark
    page.set_viewport_size({"width": 360, "height": 640})
    page.reload()
    expect(page.locator("#panel")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.click("#toggle")
    expect(page.locator("#panel")).to_be_visible()


@pytest.mark.slow
@needs_browser
def test_an_error_goes_when_its_cause_may_have_gone(page):
    page.route("**/api/tags", lambda route: route.fulfill(status=401, json={"error": "no key"}))
    page.reload()
    expect(page.locator("#failure")).to_have_text("401: no key")
    page.unroute("**/api/tags")
    page.fill("#key", "key")
    page.locator("#key").blur()
    expect(page.locator("#failure")).to_be_hidden()
    expect(page.locator("#model option")).to_have_count(4)


@needs_browser
def test_code_is_coloured_and_nothing_of_it_is_lost(page):
    code = 'def f(x):  # a "note"\n    return "# no note" + str(10)'
    made = page.evaluate(
        "async (code) => (await import('/page/code.js')).coloured(code, 'py')"
        ".map((each) => [each.className ?? '', each.textContent ?? each])",
        code,
    )
    assert "".join(text for _, text in made) == code
    assert [[kind, text] for kind, text in made if kind] == [
        ["code-word", "def"],
        ["code-note", '# a "note"'],
        ["code-word", "return"],
        ["code-string", '"# no note"'],
        ["code-number", "10"],
    ]


@pytest.mark.slow
@needs_browser
def test_conversations_are_kept_opened_again_and_deleted(page):
    page.select_option("#think", "false")
    said(page, "First question")
    page.click("#new")
    said(page, "Second question")
    page.reload()
    expect(page.locator("article.user .text")).to_have_text("Second question")
    page.click("#tab-history")
    titles = page.locator("#history .kept button:first-child")
    expect(titles).to_have_text(["Second question", "First question"])
    titles.nth(1).click()
    expect(page.locator("article.user .text")).to_have_text("First question")
    page.click("[aria-label='Delete First question']")
    expect(page.locator("article")).to_have_count(0)
    expect(titles).to_have_text(["Second question"])


@needs_browser
def test_models_are_listed_deleted_and_pulled(page):
    asked = []

    def pulled(route):
        asked.append(route.request.post_data_json)
        route.fulfill(body='{"status": "pulling"}\n{"status": "success"}\n')

    def deleted(route):
        asked.append((route.request.method, route.request.post_data_json))
        route.fulfill(json={})

    page.route("**/api/pull", pulled)
    page.route("**/api/delete", deleted)
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#tab-models")
    expect(page.locator("#models-list tr")).to_have_count(4)
    page.click("[aria-label='Delete tale:latest']")
    page.fill("#pull-name", "llama3.2")
    page.click("#pull-go")
    expect(page.locator("#pull-status")).to_have_text("success")
    assert asked == [("DELETE", {"model": "tale:latest"}), {"model": "llama3.2"}]


@needs_browser
def test_a_model_of_pictures_shows_one(page):
    pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
        "RU5ErkJggg=="
    )
    models = [{"name": "pictures:latest", "capabilities": ["image"]}]
    page.route("**/api/tags", lambda route: route.fulfill(json={"models": models}))
    answer = {"data": [{"b64_json": pixel}]}
    page.route("**/v1/images/generations", lambda route: route.fulfill(json=answer))
    page.reload()
    page.fill("#prompt", "a red circle")
    page.keyboard.press("Enter")
    picture = page.locator("article.assistant img")
    expect(picture).to_have_attribute("alt", "A picture of: a red circle")
    page.wait_for_function("document.querySelector('article.assistant img').naturalWidth === 1")


@needs_browser
def test_an_option_out_of_range_is_not_sent(page):
    page.click("#tab-settings")
    page.fill("#option-top_p", "7")
    page.fill("#option-top_k", "5")
    options = page.evaluate("import('/page/settings.js').then((m) => m.settings().options)")
    assert options == {"top_k": 5}


def drawn(colour, size=96, form="PNG"):
    """A square in the middle of a picture, as the model ``eyes`` knows them."""
    image, file = Image.new("RGB", (size, size), "white"), io.BytesIO()
    ImageDraw.Draw(image).rectangle((size // 4, size // 4, size * 3 // 4, size * 3 // 4), colour)
    image.save(file, form)
    return file.getvalue()


def chosen(name, data):
    return {"name": name, "mimeType": "image/png", "buffer": data}


# A file as a person drops or pastes it; whether the browser's own deed was prevented.
HAND_OVER = """([kind, place, data, name, type]) => {
  const transfer = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  transfer.items.add(new File([bytes], name, { type }));
  const rest = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent(kind, { clipboardData: transfer, ...rest })
    : new DragEvent(kind, { dataTransfer: transfer, ...rest });
  return !document.querySelector(place).dispatchEvent(event);
}"""


def hand_over(page, kind, data, name="a.png", type_="image/png"):
    place = "#prompt" if kind == "paste" else "body"
    assert page.evaluate(HAND_OVER, [kind, place, b64encode(data).decode(), name, type_])


@pytest.mark.slow
@needs_browser
def test_the_last_answer_stays_in_sight_above_a_waiting_picture(page):
    page.fill("#option-temperature", "0")
    for _ in range(3):
        hand_over(page, "drop", drawn("#d82323"))
        expect(page.locator("#waiting li")).to_have_count(1)
        answer = said(page, "What is this?", "eyes:latest")
    hand_over(page, "drop", drawn("#d82323"))
    expect(page.locator("#waiting li")).to_have_count(1)
    end = answer.evaluate("(each) => each.getBoundingClientRect().bottom")
    start = page.locator("#waiting").evaluate("(each) => each.getBoundingClientRect().top")
    assert end <= start


@needs_browser
def test_a_picture_is_dropped_in_sent_and_kept(page):
    page.fill("#option-temperature", "0")
    page.select_option("#model", "eyes:latest")
    hand_over(page, "dragover", drawn("#d82323"))
    expect(page.locator("body.dropping")).to_have_count(1)
    hand_over(page, "drop", drawn("#d82323"))
    expect(page.locator("body.dropping")).to_have_count(0)
    hand_over(page, "paste", drawn("#2850d7"))
    page.set_input_files("#files", [chosen("large.png", drawn("#d82323", 3000))])
    waiting = page.locator("#waiting li")
    expect(waiting).to_have_count(3)
    large = page.locator("#waiting img").nth(2)
    expect(large).to_have_attribute("alt", "large.png")
    # Of one colour, its file is small and is sent as it is.
    expect(large).to_have_attribute("title", "large.png, 3000 × 3000")
    waiting.nth(2).locator("button").click()
    waiting.nth(0).locator("button").click()
    expect(waiting).to_have_count(1)
    with page.expect_request("**/api/chat") as asked:
        answer = said(page, "Which colour?", "eyes:latest")
    [message] = asked.value.post_data_json["messages"]
    assert message == {
        "role": "user",
        "content": "Which colour?",
        "images": [b64encode(drawn("#2850d7")).decode()],
    }
    expect(answer.locator(".text")).to_have_text("Blue.")
    expect(waiting).to_have_count(0)
    page.reload()
    expect(page.locator("article.user img")).to_have_attribute("alt", "a.png")
    page.click("article.user button:text('Edit')")
    expect(waiting).to_have_count(1)
    assert page.input_value("#prompt") == "Which colour?"


@needs_browser
def test_a_photograph_is_sent_smaller(page):
    """Noise, which no format makes small, of more pixels than towers read."""
    page.select_option("#model", "eyes:latest")
    noise, file = Image.effect_noise((2000, 1000), 90), io.BytesIO()
    noise.save(file, "PNG")
    hand_over(page, "paste", file.getvalue(), "")
    picture = page.locator("#waiting img")
    expect(picture).to_have_attribute("title", "pasted picture, 2000 × 1000, sent as 1568 × 784")
    url = picture.get_attribute("src")
    assert url.startswith("data:image/jpeg;base64,")
    assert picture.evaluate("(one) => [one.naturalWidth, one.naturalHeight]") == [1568, 784]


@needs_browser
def test_pictures_are_refused_for_a_model_without_vision(page):
    page.select_option("#model", "tale:latest")
    hand_over(page, "drop", drawn("#d82323"))
    why = "tale:latest does not read pictures; choose one that does: eyes:latest."
    failure = page.locator("#failure")
    expect(failure).to_have_text(why)
    expect(page.locator("#waiting li")).to_have_count(0)
    page.select_option("#model", "eyes:latest")
    expect(failure).to_be_hidden()
    hand_over(page, "drop", b"text", "a.txt", "text/plain")
    expect(failure).to_have_text(
        "a.txt: this browser finds no picture in it (text/plain, 4 bytes)."
    )
    hand_over(page, "drop", drawn("#d82323"))
    expect(page.locator("#waiting li")).to_have_count(1)
    page.select_option("#model", "tale:latest")
    page.keyboard.press("Enter")
    page.click("#send")
    expect(failure).to_have_text(why)
    expect(page.locator("#waiting li")).to_have_count(1)
    expect(page.locator("article")).to_have_count(0)


@needs_browser
@pytest.mark.slow
def test_a_full_store_keeps_texts_and_drops_pictures(page):
    """Of browsers, whose store for a page holds about five million characters."""
    page.evaluate(
        """async () => {
      const { choose, write } = await import("/page/conversations.js");
      const picture = { url: "data:," + "x".repeat(2_000_000), name: "a.png" };
      for (const content of ["first", "second", "third"]) {
        choose(null);
        write([{ role: "user", content, pictures: [picture] }]);
      }
      const say = (i) => ({ role: "user", content: `${i}`, pictures: [picture] });
      write([0, 1, 2].map(say));
    }"""
    )
    page.reload()
    expect(page.locator("article.user .text")).to_have_text(["0", "1", "2"])
    expect(page.locator("article.user img")).to_have_count(2)
    lost = page.locator("article.user").first.locator(".pictures")
    expect(lost).to_have_text("a.png (not kept by this browser)")
    page.click("#tab-history")
    titles = page.locator("#history .kept button:first-child")
    expect(titles).to_have_text(["0", "second", "first"])
