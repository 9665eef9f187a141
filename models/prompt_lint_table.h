/* prompt_lint_table.h: the words that models/prompt_lint.c looks for, "phrase|phrase|...".
 * Opposites are X(name, side, other side).
 */
#ifndef LAC_MODELS_PROMPT_LINT_TABLE_H
#define LAC_MODELS_PROMPT_LINT_TABLE_H

/* clang-format off */
#define LINT_VAGUE_WORDS                                                                           \
    "some|somehow|something|somewhat|several|various|maybe|perhaps|possibly|probably|might|could|" \
    "good|better|nice|great|bad|fine|proper|properly|appropriate|appropriately|suitable|relevant|" \
    "reasonable|reasonably|adequate|enough|sufficient|interesting|stuff|thing|things|etc|and so on|"\
    "kind of|sort of|a bit|a little|a lot|lots|many|few|often|sometimes|usually|generally|mostly|" \
    "roughly|approximately|quickly|soon|as needed|if necessary|if possible|"          \
    "as appropriate|whatever|anything|anyhow|normal|typical|simple|easy|big|small|long|short|"     \
    "fairly|quite|pretty|very|really|more or less|to some extent|user friendly|"                   \
    "一些|某些|若干|各种|可能|也许|或许|大概|大约|左右|差不多|适当|适当地|合适|合理|相关|"         \
    "好的|好一点|更好|不错|有趣|东西|等等|之类|有点|稍微|比较|很多|许多|经常|有时|通常|一般|"      \
    "基本上|尽快|尽量|尽可能|必要时|如有必要|看情况|随便|正常|简单|较大|较小|非常|"                \
    "某种程度|什么的|诸如此类"

#define LINT_CONSTRAINT_WORDS                                                                      \
    "must|must not|shall|should|should not|required|exactly|only|at least|at most|no more than|"   \
    "no less than|no fewer than|up to|maximum|minimum|within|limit|limited to|never|always|"       \
    "do not|don't|cannot|avoid|without|except|in json|as json|json|xml|csv|markdown|table|"        \
    "bullet points|bullets|format|numbered list|in english|in chinese|in one sentence|"            \
    "step by step|words|sentences|paragraphs|lines|characters|tokens|based only on|"               \
    "use the following|in the style of|tone|for children|for beginners|deadline|before|"           \
    "必须|不得|不能|不要|禁止|务必|应当|应该|只能|仅|只|至少|最多|不超过|不少于|以内|之内|"        \
    "严格|格式|表格|列表|要点|用中文|用英文|分步|逐步|字数|字以内|句话|段落|语气|风格|"            \
    "面向|避免|除了|始终|按照|依据|根据"

#define LINT_IMPERATIVE_WORDS                                                                      \
    "write|answer|explain|describe|list|summarize|summarise|translate|give|provide|use|keep|make|" \
    "create|generate|return|output|respond|reply|include|exclude|ignore|follow|act|be|tell|show|"  \
    "find|compute|calculate|solve|compare|analyze|analyse|rewrite|extract|classify|implement|fix|" \
    "add|remove|ensure|remember|please|start|end|stop|avoid|do not|don't|never|always|review|"     \
    "plan|draft|suggest|check|convert|identify|stay|mention|ask|define|outline|propose|design|"   \
    "classify|rank|choose|pick|prove|say|set|focus|limit|cite|quote|format|output|"                \
    "写|请|回答|解释|描述|列出|总结|翻译|给出|提供|使用|保持|生成|返回|输出|包括|忽略|遵循|"       \
    "扮演|告诉|展示|计算|求|比较|分析|改写|提取|分类|实现|修复|添加|删除|确保|记住|不要|务必"

#define LINT_NEGATIONS                                                                             \
    "not|don't|never|no|without|avoid|cannot|can't|must not|do not|should not|不要|不得|不能|"      \
    "禁止|避免|不准|不可|别|请勿"

/* Words that say nothing of what an instruction is about. */
#define LINT_COMMON_WORDS                                                                          \
    "the|and|any|all|for|with|from|that|this|your|you|are|was|its|into|use|using|than|then|very|"  \
    "have|has|not|but|one|more|most|each|every|them|they|about|when|what|which|like|such|also"

#define LINT_OPPOSITES_LIST(X)                                                                     \
    X("length",                                                                                    \
      "brief|briefly|short|concise|concisely|succinct|in one sentence|one sentence|in one word|"   \
      "one word|terse|简短|简洁|简要|一句话|扼要|精简",                                            \
      "detailed|in detail|in depth|comprehensive|comprehensively|thorough|thoroughly|at length|"   \
      "exhaustive|elaborate|long essay|thousand words|1000 words|1000字|千字|详细|详尽|全面|深入|长篇|详述")                             \
    X("register",                                                                                  \
      "formal|formally|professional|academic|正式|书面|学术|专业的语气",                           \
      "casual|casually|informal|informally|slang|colloquial|chatty|口语|随意|俚语|网络用语")                           \
    X("mood",                                                                                      \
      "serious|solemn|严肃|庄重",                                                                  \
      "humorous|funny|witty|playful|jokes|幽默|搞笑|诙谐|俏皮")                                    \
    X("format",                                                                                    \
      "json|in json|as json|json only|xml|yaml|csv",                                                               \
      "plain text|prose|paragraphs|natural language|纯文本|散文|自然语言|段落")                    \
    X("lists",                                                                                     \
      "bullet points|bullets|bulleted list|numbered list|as a list|要点|列表|分点",                \
      "no lists|no bullet points|without lists|do not use lists|do not use bullet points|"         \
      "不要列表|不要分点|不用列表")                                                                \
    X("explanation",                                                                               \
      "no explanation|no explanations|do not explain|don't explain|without explanation|"           \
      "only the answer|answer only|不要解释|无需解释|不用解释|只给答案|仅给答案",                  \
      "explain why|explain how|explain each|explain every|explain your|show your work|"            \
      "step by step|justify|give reasons|说明理由|解释原因|解释为什么|"          \
      "逐步推理|写出过程|推理过程")                                                                \
    X("language",                                                                                  \
      "in english|english only|用英文|用英语|英文回答",                                            \
      "in chinese|chinese only|用中文|用汉语|中文回答")                                            \
    X("level",                                                                                     \
      "for children|for kids|five-year-old|for beginners|simple words|plain language|layman|面向儿童|通俗易懂|"  \
      "初学者|小白",                                                                               \
      "for experts|technical terms|technical jargon|advanced readers|专业术语|面向专家|专家级")    \
    X("code",                                                                                      \
      "no code|without code|do not write code|不要代码|不写代码|无需代码",                         \
      "include code|write code|code examples|with code|source code|给出代码|编写代码|代码示例")    \
    X("sources",                                                                                   \
      "cite sources|with citations|include references|引用来源|注明出处|附参考文献",               \
      "no citations|no references|without references|do not cite|不要引用|无需出处")               \
    X("creativity",                                                                                \
      "creative|imaginative|invent|made up|发挥想象|有创意|虚构",                                  \
      "strictly factual|only facts|facts only|do not invent|do not make up|只写事实|不要编造|"     \
      "不得虚构|严格依据事实")
/* clang-format on */

#endif
